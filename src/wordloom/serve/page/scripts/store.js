// Values in the browser's storage.  Pages of several servers under one origin do not share them.

const PREFIX = `wordloom ${new URL(".", document.baseURI).pathname} `;

export function read(name) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name));
  } catch {
    return null;
  }
}

// Return whether the value was stored; the storage may be full or disabled.
export function write(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export function remove(name) {
  try {
    localStorage.removeItem(PREFIX + name);
  } catch {
    // a browser that blocks the storage holds no value
  }
}

// Call `changed(name, exists)` for each value that another window writes or removes, until `signal` is aborted.
export function listen(changed, signal) {
  addEventListener("storage", ({ key, newValue }) => {
    if (key?.startsWith(PREFIX)) changed(key.slice(PREFIX.length), newValue !== null);
  }, { signal });
}
