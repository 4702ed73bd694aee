"use strict";
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Marks frames whose content is wider than they are, so that report.css can show that they scroll.
const frameWidths = new ResizeObserver((changed) => {
  for (const { target } of changed) {
    const frame = target.closest(".frame");
    frame.classList.toggle("scrolls", frame.scrollWidth > frame.clientWidth + 1);
  }
});
const watchFrames = () => document.querySelectorAll(".frame, .frame > *").forEach((part) => frameWidths.observe(part));
watchFrames();
