// test_pages_in_a_browser.py runs this script inside a page. beyondThePage returns a list of errors; focused describes
// the element that has the focus, or returns null. axe checks the contrast of texts (AXE_CORE).

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

// Elements that the keyboard can reach, in order. focused returns the index in this list as `place`.
const controls = "a[href], button, input, select, textarea, summary, [tabindex='0']";
const reachable = () => [...document.querySelectorAll(controls)].filter((element) => shown(element) && !element.disabled);

function focused() {
  const element = document.activeElement;
  if (element === document.body) return null;
  const { outlineStyle, outlineWidth } = getComputedStyle(element);
  const outline = outlineStyle === "none" ? 0 : parseFloat(outlineWidth);
  return { place: reachable().indexOf(element), what: named(element), outline };
}
