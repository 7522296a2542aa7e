package hub

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxSubscribed bounds the resources that clients follow at one server.
const maxSubscribed = 1024

// subscriptions are who follows which resource of a server.
type subscriptions map[string]map[*mcp.ServerSession]bool

// subscribe follows a resource at its server when the first client does.
func (h *Hub) subscribe(ctx context.Context, req *mcp.SubscribeRequest) error {
	uri := req.Params.URI
	s := h.owner(uri)
	if s == nil {
		return mcp.ResourceNotFoundError(uri)
	}
	if err := h.admits(ctx, s, req.Session, req.Params.Meta, uri); err != nil {
		return err
	}
	session, err := s.up.Session()
	if err != nil {
		return h.failed(ctx, s, err)
	}
	if !s.follows(uri) {
		if err := session.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}); err != nil {
			return h.failed(ctx, s, err)
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
	h.watch(req.Session)
	return nil
}

func (s *server) follows(uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.subscribed[uri]) > 0
}

func (h *Hub) unsubscribe(_ context.Context, req *mcp.UnsubscribeRequest) error {
	for _, s := range h.all() {
		s.leave(req.Params.URI, req.Session)
	}
	return nil
}

// leave stops following a resource when the last client does.
func (s *server) leave(uri string, ss *mcp.ServerSession) {
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

// watch sees to what a session leaves: its client may go without a word.
func (h *Hub) watch(ss *mcp.ServerSession) {
	if _, known := h.watched.LoadOrStore(ss, true); known {
		return
	}
	go func() {
		_ = ss.Wait() // how it ended is the client's affair
		h.watched.Delete(ss)
		h.levels.drop(ss)
		for _, s := range h.all() {
			s.left(ss)
		}
	}()
}

// left frees what the server has for a session that is over.
func (s *server) left(ss *mcp.ServerSession) {
	s.mu.Lock()
	p := s.own[ss]
	delete(s.own, ss)
	uris := slices.Collect(maps.Keys(s.subscribed))
	s.mu.Unlock()
	for _, uri := range uris {
		s.leave(uri, ss)
	}
	if p != nil {
		s.endOwn(p)
	}
}

// resubscribe is for a server that was started again.
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

// updated must not block: it is called by what reads from the server.
func (s *server) updated(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) {
	params := *req.Params
	delete(params.Meta, mcp.MetaKeySubscriptionID) // the server's, not the client's
	go func() {                                    //nolint:gosec // to all clients, not for the one request
		defer rescue("notifications/resources/updated", nil)
		_ = s.hub.mcp.ResourceUpdated(context.Background(), &params) // who has gone hears nothing
	}()
}
