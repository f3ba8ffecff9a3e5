"use strict";
// What all parts of the page are made of: elements that hold text, never markup, and tints by source.

const HUES = [174, 268, 38, 210, 330, 95, 14, 240];
const hues = new Map();

function made(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
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

