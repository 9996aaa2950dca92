"""The page's script: sortable, filtered tables and enlarged pictures; a Python string, as an app bundle has no other files.

Without it everything is still on the page. The page's policy lets this text run, by its hash, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib

SCRIPT = r"""
"use strict";
const FILTERED = 8;

// What a cell is sorted by, where its column has several units; else what its first line says: a number where it shows one, with a
// typographic minus sign, a unit or a ratio's sign.
function value(row, at) {
  const cell = row.cells[at];
  if (cell && cell.dataset.value !== undefined) return parseFloat(cell.dataset.value);
  const text = (cell || row).cloneNode(true);
  for (const small of text.querySelectorAll("small")) small.remove();
  const shown = text.textContent.trim();
  if (!(cell && cell.classList.contains("num")) && !/^[\u00d7+\u2212-]?\d/.test(shown)) return shown.toLowerCase();
  const found = shown.replace(/\u2212/g, "-").match(/[+-]?(\d+\.?\d*(e-?\d+)?|\u221e)/);
  return found ? parseFloat(found[0].replace("\u221e", "Infinity")) : -Infinity;
}

function sortable(table) {
  const head = table.tHead && table.tHead.rows[table.tHead.rows.length - 1], body = table.tBodies[0];
  if (!head || !body || body.rows.length < 2) return;
  const original = [...body.rows];
  [...head.cells].forEach((cell, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      const now = cell.getAttribute("aria-sort"), next = now === "descending" ? "ascending" : now ? "" : "descending";
      for (const other of head.cells) other.removeAttribute("aria-sort");
      if (next) cell.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1, rows = [...original];
      if (next) rows.sort((a, b) => {
        const x = value(a, at), y = value(b, at);
        return sign * (typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? 1 : -1);
      });
      body.append(...rows);
    });
  });
}

function filterable(box) {
  const table = box.querySelector("table"), body = table && table.tBodies[0];
  if (!body || body.rows.length <= FILTERED) return;
  const field = document.createElement("input");
  field.className = "filter";
  field.type = "search";
  field.placeholder = "Filter rows";
  field.setAttribute("aria-label", "Filter rows of " + (box.getAttribute("aria-label") || "the table"));
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  box.before(field);
}

function enlarge(tiles) {
  const large = document.querySelector(".tiles.large");
  if (large) large.classList.remove("large");
  if (tiles && tiles !== large) tiles.classList.add("large");
}

document.querySelectorAll(".scroll").forEach((area) => {
  // A table that is cut at the right edge shows a shadow there.
  const mark = () => area.classList.toggle("more", area.scrollLeft + area.clientWidth < area.scrollWidth - 1);
  area.addEventListener("scroll", mark);
  new ResizeObserver(mark).observe(area);
});
document.querySelectorAll(".scroll:not(.plain) table").forEach(sortable);
document.querySelectorAll(".scroll:not(.plain)").forEach(filterable);
document.querySelectorAll(".tile img").forEach((image) => {
  image.tabIndex = 0;
  image.setAttribute("role", "button");
  const turn = () => enlarge(image.closest(".tiles"));
  image.addEventListener("click", turn);
  image.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    turn();
  });
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") enlarge(null); });

// A link into a folded part unfolds it. Paper shows what is open.
function unfold() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();
"""

SCRIPT_HASH = "sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
"""As the Content-Security-Policy of the page names the script."""
