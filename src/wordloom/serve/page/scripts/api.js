// Requests to the server.  All addresses are relative to the page, so a proxy may serve it under any path.

import { eventsOf } from "./events.js";
import { askForKey, currentKey } from "./key.js";

export class ApiError extends Error {
  constructor(status, message) {
    const shown = message.replace(/^'(\w+(?:\.\w+|\[\d+\])*)'(?=: )/, (_, path) => fieldOf(path));
    super(shown.charAt(0).toUpperCase() + shown.slice(1));
    this.status = status;
  }
}

// Return the name of a request's field as the forms write it: "Top k" for top_k, "Texts, item 3" for texts[2].
function fieldOf(path) {
  const [first, ...others] = path.split(/[.[\]]+/).filter(Boolean).map((part) => part.replaceAll("_", " "));
  const places = others.map((part) => (/^\d+$/.test(part) ? `, item ${Number(part) + 1}` : `, ${part}`));
  return first.charAt(0).toUpperCase() + first.slice(1) + places.join("");
}

async function request(path, { body, signal } = {}) {
  for (;;) {
    const key = currentKey();
    const headers = {};
    if (key) headers.Authorization = `Bearer ${key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(new URL(path, document.baseURI), {
        method: body === undefined ? "GET" : "POST",
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        signal,
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The server cannot be reached.");
    }
    if (response.ok) return response;
    if (response.status === 401) {
      // another request may have asked in the meantime
      if (currentKey() !== key || (await askForKey(key !== null))) continue;
    }
    const answer = await response.json().catch(() => ({}));
    throw new ApiError(response.status, answer.error?.message ?? `The server answered ${response.status}.`);
  }
}

export async function getJson(path) {
  return (await request(path)).json();
}

export async function postJson(path, body, signal) {
  return (await request(path, { body, signal })).json();
}

// Yield the chunks of a streamed answer.
export async function* postStream(path, body, signal) {
  const response = await request(path, { body, signal });
  let done = false;
  try {
    for await (const data of eventsOf(response.body)) {
      done = data === "[DONE]";
      if (done) continue; // reading to the end keeps the connection for the next request
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(response.status, chunk.error.message);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    done = false; // the browser's own words for a broken connection differ
  }
  if (!done) throw new ApiError(0, "The connection broke before the answer ended.");
}
