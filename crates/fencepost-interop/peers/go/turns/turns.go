// Package turns is what every peer does with its lock: read a number from a file, wait a little, write the next one, log
// the time.
package turns

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Place is the server, the lock and the folder.
type Place struct {
	Port, Name     string
	folder, number string
}

// Here returns the place in the last arguments of the command line.
func Here() Place {
	words := os.Args[len(os.Args)-4:]
	return Place{words[0], words[1], words[2], words[3]}
}

// Lock is acquired before each turn and released after it.
type Lock interface {
	// Acquire returns the queue position, as a number that grows; 0 if there is no queue.
	Acquire() (joined int64, err error)
	Release() error
}

// Must ends the process if something failed.
func Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (place Place) file(name string) string {
	return filepath.Join(place.folder, name)
}

func (place Place) has(name string) bool {
	_, err := os.Stat(place.file(name))
	return err == nil
}

// Take takes turns from the start to the stop.
func (place Place) Take(lock Lock) {
	turn, err := strconv.Atoi(os.Getenv("TURN_MS"))
	Must(err)
	log, err := os.Create(place.file("theirs-" + place.number))
	Must(err)
	for !place.has("start") {
		time.Sleep(5 * time.Millisecond)
	}
	for !place.has("stop") {
		joined, err := lock.Acquire()
		Must(err)
		text, err := os.ReadFile(place.file("counter"))
		Must(err)
		count, err := strconv.Atoi(string(text))
		Must(err)
		time.Sleep(time.Duration(turn) * time.Millisecond)
		Must(os.WriteFile(place.file("counter"), []byte(strconv.Itoa(count+1)), 0o644))
		fmt.Fprintln(log, time.Now().UnixMilli(), count, joined)
		Must(lock.Release())
	}
}
