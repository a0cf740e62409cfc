package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/redistest"
)

func TestDoctorSaysWhatIsSeriousAndEndsWithOne(t *testing.T) {
	srv := redistest.Server(t)
	status, out, errs := call("", "doctor", "-redis", srv.Addr())
	assert.Zero(t, status, errs)
	assert.Regexp(t, `(?m)^ok       version \(127\.0\.0\.1:\d+\): 7\.`, out)
	assert.Regexp(t, `(?m)^warning  persistence .*append-only file\n         A restart`, out)

	client := srv.Client()
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "100mb").Err())
	status, out, _ = call("", "doctor", "-redis", srv.Addr(), "-json")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, out, `"level":"serious","found":"maxmemory-policy is allkeys-lru"`)

	status, _, errs = call("", "doctor", "-redis", "127.0.0.1:1")
	assert.Equal(t, exitRedis, status)
	assert.Contains(t, errs, "refused")
}
