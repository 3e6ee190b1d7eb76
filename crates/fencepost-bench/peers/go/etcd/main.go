// A worker of the bench: the mutex of etcd's own client, or its bare transactions.
//
// usage: etcd mutex|bare KIND URL TASKS MILLIS HOLD_MS THINK_MS
package main

import (
	"context"
	"errors"
	"net/url"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"fencepost-bench-peers/worker"
)

const ttl = 30

type mutex struct{ *concurrency.Mutex }

func (mutex mutex) Acquire() error {
	return mutex.Lock(context.Background())
}

func (mutex mutex) Release() error {
	return mutex.Unlock(context.Background())
}

// A key that is put if absent, and deleted: the least that any lock has to do.
type bare struct {
	client *clientv3.Client
	lease  clientv3.LeaseID
	key    string
}

func (bare bare) Acquire() error {
	absent := clientv3.Compare(clientv3.CreateRevision(bare.key), "=", 0)
	put := clientv3.OpPut(bare.key, "", clientv3.WithLease(bare.lease))
	done, err := bare.client.Txn(context.Background()).If(absent).Then(put).Commit()
	if err == nil && !done.Succeeded {
		return errors.New("the key is there")
	}
	return err
}

func (bare bare) Release() error {
	_, err := bare.client.Delete(context.Background(), bare.key)
	return err
}

func main() {
	order := worker.Read()
	place, err := url.Parse(order.URL)
	worker.Must(err)
	prefix := place.Query().Get("namespace") + "/"
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{place.Host}, DialTimeout: 5 * time.Second})
	worker.Must(err)
	session := func() *concurrency.Session {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
		worker.Must(err)
		return session
	}
	shared := session()
	order.Follow(func(name string) worker.Lock {
		switch {
		case os.Args[1] == "bare":
			return bare{client, shared.Lease(), prefix + name}
		case order.Contended:
			// Within one session all mutexes of one name are one owner, and do not exclude each other.
			return mutex{concurrency.NewMutex(session(), prefix+name)}
		default:
			return mutex{concurrency.NewMutex(shared, prefix+name)}
		}
	})
}
