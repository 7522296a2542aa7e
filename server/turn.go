package server

import "context"

// turn is a mutex whose Lock accepts a context.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// lock takes the lock, or returns ctx's error, also if ctx has already ended.
func (t turn) lock(ctx context.Context) error {
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

func (t turn) unlock() { <-t }
