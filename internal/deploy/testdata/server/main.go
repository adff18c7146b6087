// Command server is a candidate for this package's tests: it answers /health after a while, /version, dies of /die, and does as its flags say.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func end() {
	fmt.Fprintln(os.Stderr, "CUDA out of memory, says the test")
	os.Exit(7)
}

func main() {
	listen := flag.String("listen", ":8000", "")
	ready := flag.Duration("ready", 0, "")
	die := flag.Duration("die", 0, "")
	stubborn := flag.Bool("stubborn", false, "")
	child := flag.String("child", "", "start a child in a session of its own, which writes its number to this file")
	sleep := flag.Bool("sleep", false, "")
	chatter := flag.Int("chatter", 0, "")
	flag.Parse()
	if *sleep {
		time.Sleep(time.Minute)
		return
	}
	fmt.Println("args", strings.Join(os.Args[1:], " "))
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "TEST_") {
			fmt.Println("env", v)
		}
	}
	for i := range *chatter {
		fmt.Printf("line %08d of idle chatter\n", i)
	}
	if *child != "" {
		c := exec.Command(os.Args[0], "-sleep")
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.WriteFile(*child, fmt.Append(nil, c.Process.Pid), 0o600)
	}
	if *stubborn {
		signal.Ignore(syscall.SIGTERM)
	}
	if *die > 0 {
		time.AfterFunc(*die, end)
	}
	start := time.Now()
	http.HandleFunc("/health", func(w http.ResponseWriter, r *http.Request) {
		if time.Since(start) < *ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("/version", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"version":"1.2.3","api_key":"%s"}`, os.Getenv("TEST_TOKEN"))
	})
	http.HandleFunc("/die", func(http.ResponseWriter, *http.Request) { end() })
	fmt.Println(http.ListenAndServe(*listen, nil))
	os.Exit(1)
}
