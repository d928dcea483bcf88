// bare creates copies of one pod as fast as the API server takes them, with nothing around it.
//
//	bare URL CA CERTIFICATE KEY NAMESPACE POD.JSON COUNT CONNECTIONS
//
// It prints the seconds from the first request to the last answer.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

func connect(caFile, certificate, key string) *http.Client {
	ca, err := os.ReadFile(caFile)
	check(err)
	pair, err := tls.LoadX509KeyPair(certificate, key)
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	config := &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
}

func create(client *http.Client, url string, body []byte) {
	answer, err := client.Post(url, "application/json", bytes.NewReader(body))
	check(err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	check(err)
	if answer.StatusCode != http.StatusCreated {
		check(fmt.Errorf("HTTP status %d: %s", answer.StatusCode, text))
	}
}

func main() {
	if len(os.Args) != 9 {
		check(fmt.Errorf("8 arguments are needed, got %d", len(os.Args)-1))
	}
	client := connect(os.Args[2], os.Args[3], os.Args[4])
	url := os.Args[1] + "/api/v1/namespaces/" + os.Args[5] + "/pods"
	template, err := os.ReadFile(os.Args[6])
	check(err)
	count, err := strconv.Atoi(os.Args[7])
	check(err)
	connections, err := strconv.Atoi(os.Args[8])
	check(err)

	numbers := make(chan int)
	var workers sync.WaitGroup
	started := time.Now()
	for range connections {
		workers.Go(func() {
			for number := range numbers {
				digits := []byte(strconv.Itoa(number))
				create(client, url, bytes.ReplaceAll(template, []byte("POD-NUMBER"), digits))
			}
		})
	}
	for number := range count {
		numbers <- number
	}
	close(numbers)
	workers.Wait()
	fmt.Printf("%.3f\n", time.Since(started).Seconds())
}
