// Calls of the server: with the tab's token where it has one, and with integers of 64 bits as they were written.

import { byId } from "./dom.js";

const KEY = "emberline-token";
const TIMEOUT_MS = 30000;
let asking = null;

/** What a server refused: its message, status and the request's id; status 0 where it did not answer. */
export class CallError extends Error {
  constructor(message, status, id = null) {
    super(message);
    this.status = status;
    this.id = id;
  }
}

/**
 * The parsed value of JSON text in which integers of 16 digits and more become strings of their digits: a JavaScript number would round them.
 */
export function parseExact(text) {
  const token = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
  return JSON.parse(text.replace(token, (found) => (/^-?\d{16,}$/.test(found) ? `"${found}"` : found)));
}

/** An answer within `timeoutMs`: its `text`, and the `id` that the server's log has of the request. Where the server asks for a token, so does the page. */
export async function callWhole(method, path, body = undefined, timeoutMs = TIMEOUT_MS) {
  for (;;) {
    const sent = sessionStorage.getItem(KEY);
    const response = await ask(method, path, body, sent, timeoutMs);
    const [text, id] = [await response.text(), response.headers.get("x-request-id")];
    if (response.status === 401) {
      // Another call may have been given a new token meanwhile.
      if (sessionStorage.getItem(KEY) === sent && !(await askToken(sent !== null))) throw new CallError("the server asks for a token", 401);
      continue;
    }
    if (!response.ok) throw new CallError(messageOf(text) ?? `the server answered ${response.status}`, response.status, id);
    return { text, id };
  }
}

/** The text of an answer; `body` is text. */
export const callText = async (...args) => (await callWhole(...args)).text;

/** The parsed JSON of an answer; null for an empty one. */
export async function call(method, path, body = undefined, timeoutMs = TIMEOUT_MS) {
  const text = await callText(method, path, body, timeoutMs);
  return text.trim() === "" ? null : parseExact(text);
}

async function ask(method, path, body, token, timeoutMs) {
  const headers = token === null ? {} : { authorization: `Bearer ${token}` };
  if (body !== undefined) headers["content-type"] = "application/json";
  try {
    return await fetch(path, { method, body, headers, cache: "no-store", redirect: "error", signal: AbortSignal.timeout(timeoutMs) });
  } catch (error) {
    throw new CallError(error.name === "TimeoutError" ? "the server did not answer in time" : "the server cannot be reached", 0);
  }
}

function messageOf(text) {
  try {
    const found = JSON.parse(text).error;
    return typeof found === "string" ? found : null;
  } catch {
    return null;
  }
}

/** Asks for a token, once at a time; true where one was given. */
export function askToken(refused) {
  asking ??= showDialog(refused).finally(() => {
    asking = null;
  });
  return asking;
}

function showDialog(refused) {
  const dialog = byId("token-dialog");
  byId("token-refused").hidden = !refused;
  byId("token-button").hidden = false;
  byId("token").value = "";
  return new Promise((resolve) => {
    byId("token-form").onsubmit = (event) => {
      event.preventDefault();
      const given = byId("token").value.trim();
      if (!/^[\x21-\x7e]+$/.test(given)) return;
      sessionStorage.setItem(KEY, given);
      dialog.onclose = null;
      dialog.close();
      resolve(true);
    };
    byId("token-cancel").onclick = () => dialog.close();
    dialog.onclose = () => resolve(false);
    dialog.showModal();
  });
}
