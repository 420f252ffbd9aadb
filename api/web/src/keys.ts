/** "/" goes to the page's text filter, the input with `data-filter`; Esc leaves a field, and dialogs close by themselves. */

export function followKeys(): void {
  addEventListener("keydown", (event) => {
    const at = event.target instanceof HTMLElement ? event.target : null;
    const writes = at !== null && at.matches("textarea, select, [contenteditable], input:not([type=checkbox], [type=radio], [type=range])");
    if (event.key === "Escape" && writes && !at.closest("dialog")) at.blur();
    if (event.key !== "/" || writes || event.ctrlKey || event.metaKey || event.altKey) return;
    const field = document.querySelector<HTMLInputElement>("input[data-filter]");
    if (!field || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    field.focus();
    field.select();
  });
}
