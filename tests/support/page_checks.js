// test_pages_in_a_browser.py runs this script inside a page. beyondThePage and paleTexts return lists of errors;
// focused describes the element that has the focus, or returns null.

const shown = (element) => element.checkVisibility({ visibilityProperty: true }) && !element.closest(".hidden, noscript");
const named = (element) => `<${element.tagName.toLowerCase()} class="${element.getAttribute("class") ?? ""}">`;

// An element that reaches beyond the page must be inside a frame that scrolls. The page must not scroll sideways.
function beyondThePage() {
  const width = document.documentElement.clientWidth;
  const wrong = [document.documentElement, document.body]
    .filter((element) => element.scrollWidth > width)
    .map((element) => `${named(element)} is ${element.scrollWidth} wide, the window ${width}`);
  const outside = [...document.body.querySelectorAll("*")].filter((element) => {
    const box = element.getBoundingClientRect();
    return shown(element) && (box.right > width + 0.5 || box.left < -0.5) && !element.parentElement.closest(".frame");
  });
  return [...wrong, ...outside.map((element) => `${named(element)} ends at ${element.getBoundingClientRect().right}`)];
}

const clamped = (value) => Math.max(0, Math.min(1, value));

// Red, green, blue and alpha, between 0 and 1, of a computed colour.
function parsed(colour) {
  const numbers = colour.match(/[\d.]+/g).map(Number);
  if (!colour.startsWith("rgb")) throw new Error(`colour: expected rgb() or rgba(), got ${colour}`);
  return [...numbers.slice(0, 3).map((value) => value / 255), numbers[3] ?? 1];
}

// Applies the filter functions that the page uses, invert and hue-rotate, by the Filter Effects specification.
function filtered([red, green, blue, alpha], filter) {
  let rgb = [red, green, blue];
  for (const [, name, amount] of filter.matchAll(/([a-z-]+)\(([\d.]+)[a-z]*\)/g)) {
    if (name === "invert") rgb = rgb.map((value) => value * (1 - amount) + (1 - value) * amount);
    else if (name === "hue-rotate") {
      const [cos, sin] = [Math.cos((amount * Math.PI) / 180), Math.sin((amount * Math.PI) / 180)];
      const [r, g, b] = rgb;
      rgb = [
        r * (0.213 + cos * 0.787 - sin * 0.213) + g * (0.715 - cos * 0.715 - sin * 0.715) + b * (0.072 - cos * 0.072 + sin * 0.928),
        r * (0.213 - cos * 0.213 + sin * 0.143) + g * (0.715 + cos * 0.285 + sin * 0.14) + b * (0.072 - cos * 0.072 - sin * 0.283),
        r * (0.213 - cos * 0.213 - sin * 0.787) + g * (0.715 - cos * 0.715 + sin * 0.715) + b * (0.072 + cos * 0.928 + sin * 0.072),
      ].map(clamped);
    } else throw new Error(`filter: expected invert() or hue-rotate(), got ${filter}`);
  }
  return [...rgb, alpha];
}

const over = ([r, g, b, a], below) => [r, g, b].map((value, i) => a * value + (1 - a) * below[i]);

// The colour that is painted behind an element. The filters of an element apply to all elements inside it.
function ground(element) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.unshift(at);
  let colour = [1, 1, 1];
  layers.forEach((at, depth) => {
    const style = getComputedStyle(at);
    let own = parsed(style.backgroundColor);
    for (let i = depth; i >= 0; i--) own = filtered(own, getComputedStyle(layers[i]).filter.replace("none", ""));
    colour = over(own, colour);
  });
  return colour;
}

function ink(element) {
  const style = getComputedStyle(element);
  let colour = parsed(element instanceof SVGElement ? style.fill : style.color);
  for (let at = element; at; at = at.parentElement) colour = filtered(colour, getComputedStyle(at).filter.replace("none", ""));
  return colour;
}

const luminance = (rgb) =>
  rgb
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);

// WCAG 2.2: 4.5 for text, 3 for text of 24 pixels, or bold of 18.66.
function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

function paleTexts() {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const wrong = [];
  let seen = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !shown(element) || element.closest("script, style")) continue;
    seen++;
    const behind = ground(element);
    const found = contrast(over(ink(element), behind), behind);
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (found < (large ? 3 : 4.5)) wrong.push(`${named(element)} ${walker.currentNode.data.trim()}: ${found.toFixed(2)}`);
  }
  return seen ? wrong : ["no text was found"];
}

// Elements that the keyboard can reach, in order. focused returns the index in this list as `place`.
const controls = "a[href], button, input, select, textarea, summary, [tabindex='0']";
const reachable = () => [...document.querySelectorAll(controls)].filter((element) => shown(element) && !element.disabled);

function focused() {
  const element = document.activeElement;
  if (element === document.body) return null;
  const style = getComputedStyle(element);
  const colour = over(parsed(style.outlineColor), ground(element.parentElement));
  return {
    place: reachable().indexOf(element),
    what: named(element),
    outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
    contrast: contrast(colour, ground(element.parentElement)),
  };
}
