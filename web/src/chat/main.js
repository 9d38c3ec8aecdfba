import { render } from "preact";
import { App } from "./App.jsx";
import { start } from "./state.js";

const root = document.getElementById("app");
root.replaceChildren();
render(<App />, root);
start();
