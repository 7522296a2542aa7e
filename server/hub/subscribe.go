package hub

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxSubscribed limits the resources that clients follow at one server.
const maxSubscribed = 1024

// subscriptions holds the clients that follow each resource of a server.
type subscriptions map[string]map[*mcp.ServerSession]bool

// subscribe follows a resource at its server when the first client does.
func (h *Hub) subscribe(ctx context.Context, req *mcp.SubscribeRequest) error {
	uri := req.Params.URI
	s := h.findOwner(uri)
	if s == nil {
		return mcp.ResourceNotFoundError(uri)
	}
	if err := h.admitText(ctx, s, req.Session, req.Params.Meta, uri); err != nil {
		return err
	}
	session, err := s.up.Session()
	if err != nil {
		return h.clientError(ctx, s, err)
	}
	if !s.follows(uri) {
		if err := session.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}); err != nil {
			return h.clientError(ctx, s, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscribed == nil {
		s.subscribed = subscriptions{}
	}
	who := s.subscribed[uri]
	if who == nil {
		if len(s.subscribed) >= maxSubscribed {
			return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: fmt.Sprintf("clients follow %d resources already", maxSubscribed)}
		}
		who = map[*mcp.ServerSession]bool{}
		s.subscribed[uri] = who
	}
	who[req.Session] = true
	h.cleanUpAfter(req.Session)
	return nil
}

func (s *server) follows(uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.subscribed[uri]) > 0
}

func (h *Hub) unsubscribe(_ context.Context, req *mcp.UnsubscribeRequest) error {
	for _, s := range h.listServers() {
		s.leaveResource(req.Params.URI, req.Session)
	}
	return nil
}

// leaveResource unsubscribes from a resource when the last client does.
func (s *server) leaveResource(uri string, ss *mcp.ServerSession) {
	s.mu.Lock()
	who := s.subscribed[uri]
	was := len(who)
	delete(who, ss)
	last := was > 0 && len(who) == 0
	if last {
		delete(s.subscribed, uri)
	}
	s.mu.Unlock()
	if !last {
		return
	}
	session, err := s.up.Session()
	if err != nil {
		return // it follows nothing any more
	}
	ctx, cancel := context.WithTimeout(context.Background(), listTime)
	defer cancel()
	if err := session.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: uri}); err != nil {
		s.hub.log.Warn("unsubscribe", "server", s.config.Name, "error", err)
	}
}

// cleanUpAfter cleans up after a session, since its client may leave without a word.
func (h *Hub) cleanUpAfter(ss *mcp.ServerSession) {
	if _, known := h.watched.LoadOrStore(ss, true); known {
		return
	}
	go func() {
		_ = ss.Wait() // how it ended is the client's affair
		h.watched.Delete(ss)
		h.levels.dropSession(ss)
		for _, s := range h.listServers() {
			s.dropSession(ss)
		}
	}()
}

// dropSession frees the server's resources for a session that has ended.
func (s *server) dropSession(ss *mcp.ServerSession) {
	s.mu.Lock()
	p := s.own[ss]
	delete(s.own, ss)
	uris := slices.Collect(maps.Keys(s.subscribed))
	s.mu.Unlock()
	for _, uri := range uris {
		s.leaveResource(uri, ss)
	}
	if p != nil {
		s.endOwn(p)
	}
}

// resubscribe subscribes again at a restarted server.
func (s *server) resubscribe(ctx context.Context, session *mcp.ClientSession) {
	s.mu.Lock()
	again := s.following != session
	s.following = session
	uris := slices.Collect(maps.Keys(s.subscribed))
	s.mu.Unlock()
	if !again {
		return
	}
	for _, uri := range uris {
		if err := session.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}); err != nil {
			s.hub.log.Warn("subscribe again", "server", s.config.Name, "error", err)
		}
	}
}

// forwardUpdate must not block: the server's reader calls it.
func (s *server) forwardUpdate(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) {
	params := *req.Params
	delete(params.Meta, mcp.MetaKeySubscriptionID) // the id is the server's, not the client's
	go func() {                                    //nolint:gosec // to all clients, not for the one request
		defer rescue("notifications/resources/updated", nil)
		_ = s.hub.mcp.ResourceUpdated(context.Background(), &params) // clients that have left receive nothing
	}()
}
