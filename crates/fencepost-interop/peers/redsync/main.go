// Takes turns with redsync, with the pauses it has by default.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func main() {
	port, name, folder, number := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	counter, stop := filepath.Join(folder, "counter"), filepath.Join(folder, "stop")
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	locks := redsync.New(goredis.NewPool(client))
	log, err := os.Create(filepath.Join(folder, "theirs-"+number))
	must(err)
	for !exists(filepath.Join(folder, "start")) {
		time.Sleep(5 * time.Millisecond)
	}
	for !exists(stop) {
		mutex := locks.NewMutex(name)
		if mutex.Lock() != nil {
			continue
		}
		text, err := os.ReadFile(counter)
		must(err)
		count, err := strconv.Atoi(string(text))
		must(err)
		time.Sleep(2 * time.Millisecond)
		must(os.WriteFile(counter, []byte(strconv.Itoa(count+1)), 0o644))
		fmt.Fprintln(log, time.Now().UnixMilli())
		_, err = mutex.Unlock()
		must(err)
	}
}
