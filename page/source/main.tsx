import { render } from "preact";
import { listenForShortcuts } from "./shortcuts";
import { Store } from "./store";
import { App } from "./view/app";

const store = new Store();
const place = document.getElementById("app")!;
listenForShortcuts(store);
void store.start(() => render(<App store={store} />, place));
