// A worker of the bench: redsync.
package main

import (
	"context"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"fencepost-bench-peers/worker"
)

type lock struct{ *redsync.Mutex }

func (lock lock) Acquire() error {
	return lock.Lock()
}

func (lock lock) Release() error {
	_, err := lock.Unlock()
	return err
}

func main() {
	order := worker.Read()
	options, err := redis.ParseURL(order.URL)
	worker.Must(err)
	client := redis.NewClient(options)
	worker.Must(client.Ping(context.Background()).Err())
	locks := redsync.New(goredis.NewPool(client))
	order.Follow(func(name string) worker.Lock {
		// Its own delays between tries, but it never gives up.
		return lock{locks.NewMutex(name, redsync.WithExpiry(30*time.Second), redsync.WithTries(1<<30))}
	})
}
