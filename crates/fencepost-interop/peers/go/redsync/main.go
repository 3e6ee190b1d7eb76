// Takes turns with redsync, with the pauses it has by default.
package main

import (
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"fencepost.test/peers/turns"
)

type lock struct {
	locks *redsync.Redsync
	name  string
	mutex *redsync.Mutex
}

func (lock *lock) Acquire() (int64, error) {
	lock.mutex = lock.locks.NewMutex(lock.name)
	// It gives up after a number of tries.
	for lock.mutex.Lock() != nil {
	}
	return 0, nil
}

func (lock *lock) Release() error {
	_, err := lock.mutex.Unlock()
	return err
}

func main() {
	place := turns.Here()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + place.Port})
	place.Take(&lock{locks: redsync.New(goredis.NewPool(client)), name: place.Name})
}
