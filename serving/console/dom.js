// Elements, made by hand: text is always a text node, so that no name, reason or message of a server is ever markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. `attributes`: `onclick` and the like are listeners; true sets an empty attribute; null, undefined and false leave it out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element; see `h`. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** The element with an id. */
export const byId = (id) => document.getElementById(id);

/** Sets text, where it differs: nothing is drawn anew, or read out again, without need. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A choice's options; the chosen one stays chosen where it is still there. */
export function setOptions(select, options) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options === wanted) return;
  const chosen = select.value;
  select.dataset.options = wanted;
  select.replaceChildren(...options.map(([value, text]) => h("option", { value }, text)));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

/** Asks a question; a promise of true or false. */
export function confirmed(question, yes) {
  const dialog = byId("confirm-dialog");
  setText(byId("confirm-text"), question);
  setText(byId("confirm-yes"), yes);
  return new Promise((resolve) => {
    const answer = (value) => () => {
      dialog.onclose = null;
      dialog.close();
      resolve(value);
    };
    byId("confirm-yes").onclick = answer(true);
    byId("confirm-no").onclick = answer(false);
    dialog.onclose = () => resolve(false);
    dialog.showModal();
    byId("confirm-no").focus();
  });
}
