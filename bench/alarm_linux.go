package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm is a timer of the kernel's for one goroutine. It costs no thread, as a file that becomes readable.
//
// time.Sleep is not used for what is measured: Go rounds what it asks of epoll to milliseconds, anew after every event of the
// process. So a sleep of 2 ms lasts the longer, by up to one more, the more a library does meanwhile in the same process.
type alarm struct {
	fd   int
	file *os.File // of fd; its Fd would make it block a thread
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return &alarm{fd, os.NewFile(uintptr(fd), "alarm")}, nil
}

// sleep lasts for d, which must be more than 0.
func (a *alarm) sleep(d time.Duration) error {
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	if err := unix.TimerfdSettime(a.fd, 0, &at, nil); err != nil {
		return os.NewSyscallError("timerfd_settime", err)
	}
	var expired [8]byte
	_, err := a.file.Read(expired[:])
	return err
}

func (a *alarm) close() { _ = a.file.Close() }
