// Stand-in: opens the socket that noVNC opens and speaks no RFB.
export default class RFB {
  constructor(target, url) { this.socket = new WebSocket(url, ["binary"]); }
}
