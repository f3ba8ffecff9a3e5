"use strict";
// What all parts of the page are made of: elements that hold text, never markup, and tints by source.

const $ = (id) => document.getElementById(id);
const HUES = [174, 268, 38, 210, 330, 95, 14, 240];
const hues = new Map();

function made(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function button(text, title, onclick) {
  const element = made("button", "", text);
  element.type = "button";
  if (title) element.title = title;
  element.onclick = onclick;
  return element;
}

// Control characters have symbols of their own; line feeds and tabs stay.
const shown = (text) => text.replace(/[\0-\x08\x0b-\x1f\x7f]/g,
  (c) => c === "\x7f" ? "\u2421" : String.fromCharCode(0x2400 + c.charCodeAt(0)));

function tinted(element, source) {
  if (source === "target") return element;
  if (!hues.has(source)) hues.set(source, HUES[hues.size % HUES.length]);
  element.classList.add("drafted");
  element.style.setProperty("--hue", hues.get(source));
  return element;
}

const by = (source) => source === "target" ? "the model itself" : source;

// A number of things, in words.
const counted = (count, thing) => `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;

// Tell those who see it and those who hear it.
function tell(text) { $("note").textContent = text; }

// The clipboard asks for a secure page, which a server in the house is not: then a selection is copied.
async function copied(text, element) {
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else copiedBySelection(text);
    tell("Copied.");
  } catch (error) {
    tell(`Not copied: ${error.message}`);
  }
  element.focus();
}

function copiedBySelection(text) {
  const area = document.body.appendChild(made("textarea", "hidden"));
  area.value = text;
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("the browser does not let the page copy");
}

// Give a file to whoever looks at the page.
function downloaded(name, text) {
  const link = made("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
