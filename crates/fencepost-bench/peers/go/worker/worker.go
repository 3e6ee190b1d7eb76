// Package worker is what every worker of the bench in Go does (see src/workers.rs); tasks are goroutines. The
// order is in the last arguments of the command line:
//
//	KIND URL TASKS MILLIS HOLD_MS THINK_MS
package worker

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Lock is a lock, as one task uses it.
type Lock interface {
	Acquire() error
	Release() error
}

// Order is the order of the worker.
type Order struct {
	URL         string
	Contended   bool
	tasks       int
	length      float64
	hold, think time.Duration
}

type found struct {
	Turns []int        `json:"turns"`
	Waits []float64    `json:"waits"`
	Spans [][2]float64 `json:"spans"`
	Wall  float64      `json:"wall"`
}

// One clock for all processes.
func now() float64 {
	var time unix.Timespec
	Must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &time))
	return float64(time.Sec) + float64(time.Nsec)/1e9
}

// Must ends the process if something failed.
func Must(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
		os.Exit(1)
	}
}

func number(word string) int {
	number, err := strconv.Atoi(word)
	Must(err)
	return number
}

// Read reads the order.
func Read() Order {
	if len(os.Args) < 7 {
		Must(fmt.Errorf("an order has six words"))
	}
	words := os.Args[len(os.Args)-6:]
	return Order{
		URL:       words[1],
		Contended: words[0] == "contended",
		tasks:     number(words[2]),
		length:    float64(number(words[3])) / 1e3,
		hold:      time.Duration(number(words[4])) * time.Millisecond,
		think:     time.Duration(number(words[5])) * time.Millisecond,
	}
}

func uncontended(lock Lock, end float64) (one found) {
	for {
		begun := now()
		if begun >= end {
			return
		}
		Must(lock.Acquire())
		Must(lock.Release())
		one.Waits = append(one.Waits, now()-begun)
	}
}

func (order Order) contended(lock Lock, end float64) (one found) {
	for now() < end {
		asked := now()
		Must(lock.Acquire())
		entered := now()
		time.Sleep(order.hold)
		left := now()
		Must(lock.Release())
		one.Waits = append(one.Waits, entered-asked)
		one.Spans = append(one.Spans, [2]float64{entered, left})
		time.Sleep(order.think)
	}
	return
}

// Follow creates a lock for each task, prints `ready`, waits for the signal, works, and prints its results.
func (order Order) Follow(lock func(name string) Lock) {
	locks := make([]Lock, order.tasks)
	for task := range locks {
		if order.Contended {
			locks[task] = lock("bench")
		} else {
			locks[task] = lock(fmt.Sprintf("bench/%d/%d", os.Getpid(), task))
		}
	}
	fmt.Println("ready")
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	Must(err)
	start := now()
	end := start + order.length
	var all sync.WaitGroup
	founds := make([]found, order.tasks)
	for task, lock := range locks {
		all.Go(func() {
			if order.Contended {
				founds[task] = order.contended(lock, end)
			} else {
				founds[task] = uncontended(lock, end)
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
	Must(json.NewEncoder(os.Stdout).Encode(sum))
}
