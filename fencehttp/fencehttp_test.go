package fencehttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/fencehttp"
	"github.com/go-leasehold/leasehold/leaseholdtest"
)

// echo answers with the fence that it finds in its context.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	fence, ok := fencehttp.FromContext(r.Context())
	fmt.Fprintf(w, "%q %d %t", fence.Resource, fence.Token, ok)
})

// send asks a server with the given headers and returns its answer.
func send(t *testing.T, h http.Handler, headers ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func TestMiddlewareRefusesRequestsThatSayNothingUsable(t *testing.T) {
	const token, resource = fencehttp.TokenHeader, fencehttp.ResourceHeader
	tests := []struct {
		name    string
		headers []string
		status  int
		title   string
	}{
		{"nothing", nil, 428, "Fencing-Token is missing"},
		{"no token", []string{resource, "r"}, 428, "Fencing-Token is missing"},
		{"no resource", []string{token, "33"}, 428, "Fencing-Resource is missing"},
		{"two tokens", []string{token, "33", token, "34", resource, "r"}, 400, "Fencing-Token is there more than once"},
		{"one token twice", []string{token, "33", token, "33", resource, "r"}, 400, "Fencing-Token is there more than once"},
		{"two resources", []string{token, "33", resource, "r", resource, "s"}, 400, "Fencing-Resource is there more than once"},
		{"a percent sign", []string{token, "33", resource, "100%"}, 400, "Fencing-Resource is not one percent-encoded name"},
		{"joined resources", []string{token, "33", resource, "r,s"}, 400, "Fencing-Resource is not one percent-encoded name"},
		{"a space", []string{token, "33", resource, "r s"}, 400, "Fencing-Resource is not one percent-encoded name"},
		{"an empty resource", []string{token, "33", resource, ""}, 400, "Fencing-Resource is not one percent-encoded name"},
	}
	for _, value := range []string{
		"", "0", "-1", "+33", "033", "3 3", " 33", "33 ", "33,34", "3_3", "0x21", "33.0", "1e3", "abc", "٣٣", "\x00",
		"9223372036854775808", "-9223372036854775809", strings.Repeat("9", 100_000),
	} {
		tests = append(tests, struct {
			name    string
			headers []string
			status  int
			title   string
		}{fmt.Sprintf("token %.20q", value), []string{token, value, resource, "r"}, 400, "Fencing-Token is not a decimal number from 1 to 2^63-1"})
	}
	untouched := func(string, int64) error { t.Error("the guard was asked"); return nil }
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			response := send(t, fencehttp.Middleware(untouched, echo), test.headers...)
			assert.Equal(t, test.status, response.StatusCode)
			var body struct {
				Title  string
				Status int
			}
			require.NoError(t, json.NewDecoder(response.Body).Decode(&body))
			assert.Equal(t, test.title, body.Title)
			assert.Equal(t, test.status, body.Status)
		})
	}
}

func TestMiddlewareAnswersAStaleTokenWithBothNumbers(t *testing.T) {
	var guard leasehold.Guard
	h := fencehttp.Middleware(guard.Admit, echo)
	put := func(token, resource string) (int, string) {
		response := send(t, h, fencehttp.TokenHeader, token, fencehttp.ResourceHeader, resource)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(body)
	}
	status, body := put("34", "account:7")
	assert.Equal(t, 200, status)
	assert.Equal(t, `"account:7" 34 true`, body)
	status, body = put("33", "account%3a7")
	assert.Equal(t, 412, status)
	assert.Equal(t, `{"title":"stale fencing token","status":412,"resource":"account:7","token":33,"highest":34}`+"\n", body)
	status, _ = put("33", "account:8")
	assert.Equal(t, 200, status)
	status, _ = put("34", "account:7")
	assert.Equal(t, 200, status)
	status, _ = put("9223372036854775807", "account:7")
	assert.Equal(t, 200, status)
	status, body = put("9223372036854775806", "account:7")
	assert.Equal(t, 412, status)
	assert.Contains(t, body, `"token":9223372036854775806,"highest":9223372036854775807`)
}

func TestMiddlewareLetsNothingThroughThatTheGuardDidNotAdmit(t *testing.T) {
	tests := []struct {
		err    error
		status int
	}{
		{leasehold.ErrStale, 412},
		{fmt.Errorf("unknown: %w", leasehold.ErrInvalid), 400},
		{errors.New("secret"), 503},
		{context.Canceled, 503},
	}
	for _, test := range tests {
		guard := func(string, int64) error { return test.err }
		never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") })
		response := send(t, fencehttp.Middleware(guard, never), fencehttp.TokenHeader, "33", fencehttp.ResourceHeader, "r")
		assert.Equal(t, test.status, response.StatusCode)
		assert.Equal(t, "application/problem+json", response.Header.Get("Content-Type"))
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		assert.NotContains(t, string(body), "secret")
	}
}

var _ = func(l *leasehold.Lease) fencehttp.Fence { return fencehttp.Of(l) }

// lease is what a *leasehold.Lease is to this package.
type lease struct {
	key   string
	token int64
}

func (l lease) Key() string         { return l.key }
func (l lease) FencingToken() int64 { return l.token }

func TestTransportCarriesEveryNameAndTokenToTheHandler(t *testing.T) {
	var guard leasehold.Guard
	server := httptest.NewServer(fencehttp.Middleware(guard.Admit, echo))
	defer server.Close()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, resource := range []string{"r", "account:7", "a/b?c#d", "100%", "%41", "a,b", " ", "a+b", "é", "{r}\r\nX: y", string(all)} {
		for _, token := range []int64{1, 1764434960123456, math.MaxInt64} {
			fence := fencehttp.Of(lease{resource, token})
			want := fmt.Sprintf("%q %d true", resource, token)

			client := http.Client{Transport: &fencehttp.Transport{Fence: fence}}
			assert.Equal(t, want, get(t, t.Context(), &client, server.URL))

			client = http.Client{Transport: &fencehttp.Transport{Base: http.DefaultTransport}}
			assert.Equal(t, want, get(t, fencehttp.NewContext(t.Context(), fence), &client, server.URL))
		}
	}
}

func get(t *testing.T, ctx context.Context, client *http.Client, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := client.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTransportReplacesHeadersAndLeavesTheCallersRequestAlone(t *testing.T) {
	var sent http.Header
	transport := fencehttp.Transport{
		Fence: fencehttp.Fence{Resource: "r", Token: 33},
		Base: roundTrip(func(r *http.Request) (*http.Response, error) {
			sent = r.Header
			return nil, io.EOF
		}),
	}
	// A fence of the transport's own is not replaced by one that came in with a request to a handler.
	r := httptest.NewRequestWithContext(fencehttp.NewContext(t.Context(), fencehttp.Fence{Resource: "s", Token: 44}), "GET", "/", nil)
	r.Header.Add(fencehttp.TokenHeader, "1")
	r.Header.Add(fencehttp.TokenHeader, "2")
	_, err := transport.RoundTrip(r)
	require.ErrorIs(t, err, io.EOF)
	assert.Equal(t, []string{"33"}, sent.Values(fencehttp.TokenHeader))
	assert.Equal(t, []string{"r"}, sent.Values(fencehttp.ResourceHeader))
	assert.Equal(t, []string{"1", "2"}, r.Header.Values(fencehttp.TokenHeader))
	assert.Empty(t, r.Header.Values(fencehttp.ResourceHeader))
}

type body struct{ closed bool }

func (b *body) Read([]byte) (int, error) { return 0, io.EOF }
func (b *body) Close() error             { b.closed = true; return nil }

func TestTransportSendsNoRequestWithoutAFence(t *testing.T) {
	base := roundTrip(func(*http.Request) (*http.Response, error) {
		t.Error("a request was sent")
		return nil, io.EOF
	})
	for _, fence := range []fencehttp.Fence{{}, {Resource: "r"}, {Resource: "r", Token: -1}, {Token: 33}} {
		content := &body{}
		r := httptest.NewRequestWithContext(t.Context(), "PUT", "/", content)
		_, err := (&fencehttp.Transport{Fence: fence, Base: base}).RoundTrip(r)
		require.ErrorIs(t, err, leasehold.ErrInvalid)
		assert.True(t, content.closed)
	}
}

// What the holder sends under its lease is fenced with it, and a fence that the context is given by hand comes first.
func TestTransportFencesWithTheLeaseOfTheContext(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		var sent []string
		transport := &fencehttp.Transport{Base: roundTrip(func(r *http.Request) (*http.Response, error) {
			sent = append(sent, r.Header.Get(fencehttp.ResourceHeader)+" "+r.Header.Get(fencehttp.TokenHeader))
			return &http.Response{Body: http.NoBody}, nil
		})}
		send := func(ctx context.Context) {
			_, err := transport.RoundTrip(httptest.NewRequestWithContext(ctx, "PUT", "/", nil))
			require.NoError(t, err)
		}
		require.NoError(t, env.Locker().WithLock(t.Context(), "account:7", time.Minute, func(ctx context.Context, lease *leasehold.Lease) error {
			send(ctx)
			send(fencehttp.NewContext(ctx, fencehttp.Fence{Resource: "r", Token: 33}))
			assert.Equal(t, []string{fmt.Sprintf("account:7 %d", lease.FencingToken()), "r 33"}, sent)
			return nil
		}))
		_, ok := fencehttp.FromContext(t.Context())
		assert.False(t, ok)
	})
}

func TestMiddlewareSharedRefusesAReaderForAWriterAlone(t *testing.T) {
	var both, old leasehold.Guard
	for _, server := range []struct {
		name    string
		handler http.Handler
		older   int // the answer to a reader that is older than another reader
	}{
		{"shared", fencehttp.MiddlewareShared(both.Admit, both.AdmitShared, echo), 200},
		{"exclusive", fencehttp.Middleware(old.Admit, echo), 412},
	} {
		t.Run(server.name, func(t *testing.T) {
			through := &fencehttp.Transport{Base: roundTrip(func(r *http.Request) (*http.Response, error) {
				w := httptest.NewRecorder()
				server.handler.ServeHTTP(w, r)
				return w.Result(), nil
			})}
			ask := func(token int64, shared bool) int {
				ctx := fencehttp.NewContext(t.Context(), fencehttp.Fence{Resource: "r", Token: token, Shared: shared})
				r := httptest.NewRequestWithContext(ctx, "PUT", "/", nil)
				r.Header.Set(fencehttp.SharedHeader, "1") // the fence decides, and not what the caller left there
				response, err := through.RoundTrip(r)
				require.NoError(t, err)
				return response.StatusCode
			}
			assert.Equal(t, 200, ask(10, false))
			assert.Equal(t, 412, ask(9, true), "a reader before the writer")
			assert.Equal(t, 200, ask(13, true))
			assert.Equal(t, server.older, ask(12, true), "a reader beside a newer one")
			assert.Equal(t, 412, ask(11, false), "a writer before the readers")
			assert.Equal(t, 200, ask(14, false))
			assert.Equal(t, 412, ask(13, true), "a reader before the second writer")
		})
	}
}

func TestMiddlewareRefusesASharedHeaderThatIsNotASingleOne(t *testing.T) {
	untouched := func(string, int64) error { t.Error("the guard was asked"); return nil }
	for _, values := range [][]string{{""}, {"0"}, {"true"}, {"1", "1"}, {"1,1"}} {
		headers := []string{fencehttp.TokenHeader, "33", fencehttp.ResourceHeader, "r"}
		for _, value := range values {
			headers = append(headers, fencehttp.SharedHeader, value)
		}
		assert.Equal(t, 400, send(t, fencehttp.MiddlewareShared(untouched, untouched, echo), headers...).StatusCode, values)
	}
}

// A lease says by itself which kind it is.
func TestTheFenceOfASharedLeaseIsShared(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		for _, shared := range []bool{true, false} {
			var opts []leasehold.Option
			if shared {
				opts = append(opts, leasehold.WithShared())
			}
			require.NoError(t, env.Locker().WithLock(t.Context(), "r", time.Minute, func(ctx context.Context, lease *leasehold.Lease) error {
				fence, ok := fencehttp.FromContext(ctx)
				assert.True(t, ok)
				assert.Equal(t, fencehttp.Fence{Resource: "r", Token: lease.FencingToken(), Shared: shared}, fence)
				return nil
			}, opts...))
		}
	})
}

func ExampleMiddlewareShared() {
	var guard leasehold.Guard
	server := fencehttp.MiddlewareShared(guard.Admit, guard.AdmitShared, http.NotFoundHandler())
	for _, fence := range []fencehttp.Fence{
		{Resource: "report", Token: 2, Shared: true}, {Resource: "report", Token: 1, Shared: true}, {Resource: "report", Token: 1},
	} {
		client := fencehttp.Transport{Fence: fence, Base: roundTrip(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			server.ServeHTTP(w, r)
			return w.Result(), nil
		})}
		response, _ := client.RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Println(fence.Token, fence.Shared, response.StatusCode)
	}
	// Output:
	// 2 true 404
	// 1 true 404
	// 1 false 412
}

func ExampleMiddleware() {
	var guard leasehold.Guard
	server := httptest.NewServer(fencehttp.Middleware(guard.Admit,
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fence, _ := fencehttp.FromContext(r.Context())
			fmt.Fprintf(w, "%s written under %d\n", fence.Resource, fence.Token)
		})))
	defer server.Close()

	client := http.Client{Transport: &fencehttp.Transport{}}
	put := func(fence fencehttp.Fence) { // commonly fencehttp.Of(lease)
		ctx := fencehttp.NewContext(context.Background(), fence)
		r, _ := http.NewRequestWithContext(ctx, http.MethodPut, server.URL, strings.NewReader("x"))
		response, err := client.Do(r)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		fmt.Print(response.StatusCode, " ", string(text))
	}
	put(fencehttp.Fence{Resource: "account:7", Token: 33})
	put(fencehttp.Fence{Resource: "account:7", Token: 34})
	put(fencehttp.Fence{Resource: "account:7", Token: 33})
	// Output:
	// 200 account:7 written under 33
	// 200 account:7 written under 34
	// 412 {"title":"stale fencing token","status":412,"resource":"account:7","token":33,"highest":34}
}
