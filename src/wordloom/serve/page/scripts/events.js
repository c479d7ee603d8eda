// Server-sent events: yield the data of each event in a stream of bytes.

export async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let partial = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (partial + value).split("\n");
      partial = lines.pop();
      // each event of this server is a single data line; the other lines are comments, or empty
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
