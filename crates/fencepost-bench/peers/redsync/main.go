// A worker of the bench (see src/workers.rs): redsync, with goroutines as tasks.
//
// usage: redsync KIND URL TASKS MILLIS HOLD_MS THINK_MS
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

type found struct {
	Turns []int        `json:"turns"`
	Waits []float64    `json:"waits"`
	Spans [][2]float64 `json:"spans"`
	Wall  float64      `json:"wall"`
}

// One clock for all processes.
func now() float64 {
	var time unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &time); err != nil {
		fail(err)
	}
	return float64(time.Sec) + float64(time.Nsec)/1e9
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "redsync:", err)
	os.Exit(1)
}

func number(word string) int {
	number, err := strconv.Atoi(word)
	if err != nil {
		fail(err)
	}
	return number
}

func uncontended(lock *redsync.Mutex, end float64) (waits []float64, spans [][2]float64) {
	for {
		begun := now()
		if begun >= end {
			return
		}
		if err := lock.Lock(); err != nil {
			fail(err)
		}
		if _, err := lock.Unlock(); err != nil {
			fail(err)
		}
		waits = append(waits, now()-begun)
	}
}

func contended(lock *redsync.Mutex, end float64, hold, think time.Duration) (waits []float64, spans [][2]float64) {
	for now() < end {
		asked := now()
		if err := lock.Lock(); err != nil {
			fail(err)
		}
		entered := now()
		time.Sleep(hold)
		left := now()
		if _, err := lock.Unlock(); err != nil {
			fail(err)
		}
		waits = append(waits, entered-asked)
		spans = append(spans, [2]float64{entered, left})
		time.Sleep(think)
	}
	return
}

func main() {
	if len(os.Args) != 7 {
		fail(fmt.Errorf("it takes six words"))
	}
	kind, url, tasks := os.Args[1], os.Args[2], number(os.Args[3])
	length := float64(number(os.Args[4])) / 1e3
	hold := time.Duration(number(os.Args[5])) * time.Millisecond
	think := time.Duration(number(os.Args[6])) * time.Millisecond
	options, err := redis.ParseURL(url)
	if err != nil {
		fail(err)
	}
	client := redis.NewClient(options)
	if err := client.Ping(context.Background()).Err(); err != nil {
		fail(err)
	}
	locks := redsync.New(goredis.NewPool(client))
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		fail(err)
	}
	start := now()
	end := start + length
	var all sync.WaitGroup
	founds := make([]found, tasks)
	for task := range founds {
		all.Go(func() {
			name := "bench"
			if kind != "contended" {
				name = fmt.Sprintf("bench/%d/%d", os.Getpid(), task)
			}
			// Its own delays between tries, but it never gives up.
			lock := locks.NewMutex(name, redsync.WithExpiry(30*time.Second), redsync.WithTries(1<<30))
			if kind == "contended" {
				founds[task].Waits, founds[task].Spans = contended(lock, end, hold, think)
			} else {
				founds[task].Waits, founds[task].Spans = uncontended(lock, end)
			}
		})
	}
	all.Wait()
	sum := found{Turns: []int{}, Waits: []float64{}, Spans: [][2]float64{}, Wall: now() - start}
	for _, one := range founds {
		sum.Turns = append(sum.Turns, len(one.Waits))
		sum.Waits = append(sum.Waits, one.Waits...)
		sum.Spans = append(sum.Spans, one.Spans...)
	}
	if err := json.NewEncoder(os.Stdout).Encode(sum); err != nil {
		fail(err)
	}
}
