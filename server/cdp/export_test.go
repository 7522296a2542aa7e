package cdp

// ContextID returns the id of the tab's BrowserContext.
func (t *Tab) ContextID() string { return t.context }

// Frames counts the frames with a process of their own.
func (t *Tab) Frames() int {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	return len(t.frames)
}
