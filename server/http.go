package server

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/gen/openapi"
	"github.com/finalizerd/finalizerd/server/api"
)

// routes is the HTTP side. Paths under /v1 go to the gateway as they are: a
// http.ServeMux would clean them, and redirect ".." to somewhere else instead of
// letting validation refuse it.
func routes(gateway http.Handler, ready *readiness, reg *prometheus.Registry, onlyLocal bool) http.Handler {
	mux := http.NewServeMux()
	alive := func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok\n") }
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		all, err := ready.report()
		code, body := http.StatusOK, "ok\n"
		if err != nil {
			code, body = http.StatusServiceUnavailable, fmt.Sprintf("not ready: %v\n", err)
		}
		if r.URL.Query().Has("verbose") {
			body = all + body
		} else {
			body += ready.notices()
		}
		text(w, code, body)
	})
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(openapi.JSON()) // the reader left
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg}))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { writeError(w, noSuchPath()) })

	rest := guard(gateway, onlyLocal)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			rest.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func text(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(body)) // the reader left
}

func noSuchPath() error {
	return &api.Refusal{
		Reason:  pb.ErrorReason_ERROR_REASON_UNKNOWN_METHOD,
		Message: "no such path; /openapi.json lists all",
	}
}

// writeError answers with google.rpc.Status as JSON.
func writeError(w http.ResponseWriter, err error) {
	st := api.StatusOf(err)
	writeStatus(w, api.HTTPStatus(st), st)
}
