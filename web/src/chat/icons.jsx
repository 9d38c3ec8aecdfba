const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h16", plus: "M12 5v14M5 12h14", settings: "M4 7h10M18 7h2M4 17h2M10 17h10M14 4v6M6 14v6", help: "M9.5 9.5a2.5 2.5 0 1 1 3.6 2.3c-.8.4-1.1 1-1.1 1.9M12 17v.01",
  sun: "M12 4V2M12 22v-2M4 12H2M22 12h-2M6 6 4.5 4.5M19.5 19.5 18 18M18 6l1.5-1.5M4.5 19.5 6 18M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8Z", moon: "M20 14.5A8 8 0 0 1 9.5 4 8 8 0 1 0 20 14.5Z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4", send: "M12 19V5M6 11l6-6 6 6", stop: "M7 7h10v10H7z", file: "M14 3H7v18h10V6zM14 3v4h4", close: "M6 6l12 12M18 6 6 18", edit: "M5 19h3L19 8l-3-3L5 16z",
  copy: "M9 9h10v11H9zM5 15V4h10", redo: "M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5", left: "M14 6l-6 6 6 6", right: "M10 6l6 6-6 6", trash: "M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13", tokens: "M4 6h7v5H4zM13 6h7v5h-7zM4 13h4v5H4zM10 13h10v5H10z",
  more: "M5 12h14M13 6l6 6-6 6", attach: "M16 7v9a4 4 0 0 1-8 0V6a2.5 2.5 0 0 1 5 0v9a1 1 0 0 1-2 0V7",
};

export const Icon = ({ name }) => (
  <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d={PATHS[name]} /></svg>
);

/** A button with a picture and a name for all. */
export const IconButton = ({ icon, label, text, ...rest }) => (
  <button type="button" class={text ? "button" : "icon-button"} aria-label={text ? undefined : label} title={label} {...rest}><Icon name={icon} />{text && <span>{text}</span>}</button>
);
