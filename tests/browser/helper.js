// What an audit of accessibility looks at, as far as a page alone can tell. Answers with a list of findings.
() => {
  const findings = [];
  const find = (what, element) => findings.push(`${what}: ${element.outerHTML.slice(0, 160)}`);
  const visible = (element) => element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true });
  const spoken = (element) => !element.closest("[aria-hidden=true]");

  // Names
  const nameOf = (element) => {
    const label = element.getAttribute("aria-label");
    if (label && label.trim()) return label.trim();
    const by = element.getAttribute("aria-labelledby");
    if (by) return by.split(" ").map((id) => (document.getElementById(id) || {}).textContent || "").join(" ").trim();
    if (element.labels && element.labels.length) return [...element.labels].map((one) => one.textContent).join(" ").trim();
    const text = element.matches("input, select, textarea") ? "" : element.textContent.trim();
    return text || (element.getAttribute("title") || "").trim();
  };
  const interactive = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0'], progress, meter, [role=img], [role=region], nav, form[role]";
  for (const element of document.querySelectorAll(interactive)) {
    if (visible(element) && spoken(element) && !nameOf(element) && !element.matches("form[role]")) find("no name", element);
  }
  const ids = new Map();
  for (const element of document.querySelectorAll("[id]")) {
    if (ids.has(element.id)) find("id twice", element);
    ids.set(element.id, element);
  }
  for (const label of document.querySelectorAll("label[for]")) if (!ids.has(label.htmlFor)) find("label of nothing", label);
  for (const attribute of ["aria-labelledby", "aria-describedby"]) {
    for (const element of document.querySelectorAll(`[${attribute}]`)) {
      for (const id of element.getAttribute(attribute).split(" ")) if (!ids.has(id)) find(`${attribute} of nothing`, element);
    }
  }

  // Structure
  if (!document.documentElement.lang) findings.push("no language");
  if (!document.title.trim()) findings.push("no title");
  if (document.querySelectorAll("main").length !== 1) findings.push("not one main");
  if (document.querySelectorAll("h1").length !== 1) findings.push(`${document.querySelectorAll("h1").length} h1`);
  let level = 1;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
    const now = Number(heading.tagName[1]);
    if (now > level + 1) find("heading level skipped", heading);
    level = now;
  }
  for (const table of document.querySelectorAll("table:not(.bars)")) if (!table.querySelector("th[scope]")) find("no headers", table);

  // Layout
  if (document.documentElement.scrollWidth > innerWidth + 1) {
    findings.push(`the page is ${document.documentElement.scrollWidth} px wide, the window ${innerWidth}`);
  }
  for (const element of document.querySelectorAll("*")) {
    if (!/auto|scroll/.test(getComputedStyle(element).overflowX) || element.scrollWidth <= element.clientWidth + 1) continue;
    const reachable = element.tabIndex >= 0 || element.querySelector("a[href], button, input, [tabindex]");
    if (visible(element) && !reachable) find("scrolls, but not by keyboard", element);
  }
  for (const element of document.querySelectorAll("button, select, input:not([type=hidden]), .button")) {
    const box = element.getBoundingClientRect();
    if (visible(element) && spoken(element) && (box.height < 24 || box.width < 24)) find(`only ${box.width}x${box.height}`, element);
  }

  // Contrast of every visible text against what is painted behind it
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  canvas.canvas.width = canvas.canvas.height = 1;
  const parsed = new Map();
  const rgba = (text) => {
    if (!parsed.has(text)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = text;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      parsed.set(text, [r, g, b, a / 255]);
    }
    return parsed.get(text);
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255, 1]);
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let checked = 0;
  const seen = new Set();
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || seen.has(element) || !visible(element) || !spoken(element)) continue;
    if (element.closest(".sr, .skip, script, style, svg, progress, meter, option")) continue;
    seen.add(element);
    checked += 1;
    const style = getComputedStyle(element);
    let opacity = 1;
    for (let at = element; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    const under = behind(element);
    const [r, g, b, a] = rgba(style.color);
    const ink = over([r, g, b, a * opacity], under);
    const [light, dark] = [luminance(ink), luminance(under)].sort((one, two) => two - one);
    const ratio = (light + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) find(`contrast ${ratio.toFixed(2)}`, element);
  }
  if (checked < 10) findings.push(`only ${checked} texts were checked`);
  return findings;
}
