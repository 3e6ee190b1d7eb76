// Takes turns with the mutex or the election of etcd's own client.
//
// usage: etcd mutex|election PORT NAME FOLDER NUMBER
package main

import (
	"context"
	"os"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"fencepost.test/peers/turns"
)

type mutex struct{ *concurrency.Mutex }

func (mutex mutex) Acquire() (int64, error) {
	if err := mutex.Lock(context.Background()); err != nil {
		return 0, err
	}
	// The queue position is the revision at which its key was created.
	target := mutex.IsOwner().TargetUnion.(*etcdserverpb.Compare_CreateRevision)
	return target.CreateRevision, nil
}

func (mutex mutex) Release() error {
	return mutex.Unlock(context.Background())
}

type election struct {
	*concurrency.Election
	name string
}

func (election election) Acquire() (int64, error) {
	err := election.Campaign(context.Background(), election.name)
	return election.Rev(), err
}

func (election election) Release() error {
	return election.Resign(context.Background())
}

func main() {
	place := turns.Here()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:" + place.Port}})
	turns.Must(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	turns.Must(err)
	if os.Args[1] == "election" {
		place.Take(election{concurrency.NewElection(session, place.Name), "theirs"})
	} else {
		place.Take(mutex{concurrency.NewMutex(session, place.Name)})
	}
	turns.Must(session.Close())
	turns.Must(client.Close())
}
