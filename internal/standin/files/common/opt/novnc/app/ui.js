import RFB from "../core/rfb.js";
const query = new URLSearchParams(location.search);
const path = query.get("path") ?? "websockify";
new RFB(document.body, new URL("/" + path, location.href).href.replace(/^http/, "ws"));
