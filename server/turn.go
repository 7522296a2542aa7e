package server

import "context"

// turn is a lock that can be waited for with a deadline.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take takes the lock, or gives ctx's error: also when it is over already.
func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		if ctx.Err() == nil {
			return nil
		}
		<-t
	case <-ctx.Done():
	}
	return ctx.Err()
}

func (t turn) give() { <-t }
