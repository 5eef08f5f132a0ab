/* Requests to the server of this page. A lost server is announced, and asked again until it is back. */
import { button, byId, make } from "./dom.js";

export class ServerError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

const LONGEST_WAIT = 5000; // milliseconds between attempts
const waiting = new Set(); // of those that wait for the server
let lost = false;

function setLost(value) {
  if (lost === value) return;
  lost = value;
  const banner = byId("lost");
  banner.hidden = !lost;
  if (lost) {
    banner.replaceChildren(
      make("span", { text: "The server does not answer. Is clipset serve still running? Trying again …" }),
      button("Try now", () => waiting.forEach((wake) => wake())),
    );
  } else dispatchEvent(new Event("server-back"));
}

function pause(milliseconds) {
  return new Promise((done) => {
    const wake = () => { waiting.delete(wake); clearTimeout(timer); done(); };
    const timer = setTimeout(wake, milliseconds);
    waiting.add(wake);
  });
}

async function send(path, options) {
  const response = await fetch(path, options); // TypeError: no server
  setLost(false);
  if (response.ok) return response;
  let detail = `${response.status} ${response.statusText}`;
  try {
    const body = await response.json();
    if (typeof body.detail === "string") detail = body.detail;
    else if (Array.isArray(body.detail)) detail = body.detail.map((one) => one.msg).join("; ");
  } catch { /* not JSON: the status says enough */ }
  throw new ServerError(response.status, detail);
}

/* Ask until the server answers. */
export async function getResponse(path) {
  for (let wait = 500; ; wait = Math.min(2 * wait, LONGEST_WAIT)) {
    try {
      return await send(path);
    } catch (error) {
      if (error instanceof ServerError) throw error;
      setLost(true);
      await pause(wait);
    }
  }
}

export const get = async (path) => (await getResponse(path)).json();

/* Send once: what is not acknowledged was not saved, and the caller says so. */
async function sendOnce(path, options) {
  try {
    return await (await send(path, { method: "POST", ...options })).json();
  } catch (error) {
    if (error instanceof ServerError) throw error;
    setLost(true);
    getResponse("/api/run").catch(() => {}); // announces when it is back
    throw new ServerError(0, "The server does not answer; nothing was saved.");
  }
}

export const post = (path, body = {}) =>
  sendOnce(path, { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

export const upload = (file) =>
  sendOnce(`/api/uploads?name=${encodeURIComponent(file.name)}`, {
    headers: { "Content-Type": "application/octet-stream" }, body: file,
  });

export const media = (video, kind) => `/api/videos/${video}/${kind}`;

export const thumbnail = (video) =>
  make("img", { alt: "", loading: "lazy", fetchPriority: "low", src: media(video, "thumbnail") });
