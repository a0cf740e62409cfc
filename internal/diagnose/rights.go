package diagnose

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/redis/go-redis/v9"
)

// attempts tries every command of the scripts on keys that nobody uses, and deletes them. It returns what was refused.
//
//	KEYS  1 a lock, 2 its line, 3 its counter, 4 its marks, 5 its tombstones
//	ARGV  1 a wake channel
//
// It never leaves a key without a TTL: if it may neither delete nor expire keys, it says so and writes none.
const attempts = `
local refused = {}
local function try(...)
	local reply = redis.pcall(...)
	if type(reply) == 'table' and reply.err then
		refused[#refused + 1] = ({...})[1] .. ' ' .. reply.err
		return false
	end
	return true
end
local del, pexpire = try('DEL', KEYS[1]), try('PEXPIRE', KEYS[1], 1000)
if not del and not pexpire then return refused end
local lock, line, counter, marks, undone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
try('SET', lock, 'x', 'PX', 1000) try('GET', lock) try('MGET', lock, counter) try('EXISTS', lock) try('PTTL', lock)
try('INCR', counter) try('EXPIRE', counter, 1) try('TIME')
try('ZADD', line, 1, 'a') try('ZCARD', line) try('ZRANGE', line, 0, 0) try('ZRANGEBYSCORE', line, 0, 1)
try('ZRANK', line, 'a') try('ZSCORE', line, 'a') try('ZREM', line, 'b') try('ZPOPMIN', line)
try('HSET', marks, 'a', 1) try('HGET', marks, 'a') try('HMGET', marks, 'a') try('HDEL', marks, 'a')
try('HGETALL', marks) try('ZCOUNT', line, 0, 1) try('PEXPIREAT', lock, 4102444800000)
try('ZADD', undone, 1, 'a') try('PUBLISH', ARGV[1], '0')
for _, key in ipairs(KEYS) do
	if del then redis.pcall('DEL', key) else redis.pcall('PEXPIRE', key, 1) end
end
return refused`

// probe names a lock that nobody takes.
func (d *deployment) probe() string { return d.Prefix + "leasehold:probe:" + rand.Text() }

// channel is a wake channel that nobody listens to. A cluster's messages are sharded.
func (d *deployment) channel(probe string) (name string, sharded bool) {
	if _, ok := d.client.(*redis.ClusterClient); ok {
		return string(rediskey.Derive(nil, d.Prefix, rediskey.Wake, probe)) + ":" + rand.Text(), true
	}
	return d.Prefix + rediskey.WakeChannel + rand.Text(), false
}

const mendRights = "Grant what the runbook lists under Rights. ACL LOG names the command, the key or the channel."

// rights tries what the scripts do. The keys of the locks themselves may have other names, which nobody knows here.
func (d *deployment) rights(ctx context.Context) {
	lock := d.probe()
	keys := make([]string, 0, 5)
	for _, key := range rediskey.Lock(d.Prefix, lock) {
		keys = append(keys, key.(string))
	}
	channel, sharded := d.channel(lock)
	script := attempts
	if sharded {
		script = strings.ReplaceAll(script, "'PUBLISH'", "'SPUBLISH'")
	}
	refused, err := d.client.Eval(ctx, script, keys, channel).StringSlice()
	if err != nil {
		d.serious("rights", d.name, "no script can be run: "+err.Error(), "Every acquire, renewal and release is a script.", mendRights)
		return
	}
	sha := strings.Repeat("0", 40)
	if err := d.client.EvalSha(ctx, sha, keys[:1]).Err(); err != nil && denied(err) {
		refused = append(refused, "EVALSHA "+err.Error())
	}
	ok := true
	for _, text := range refused {
		name, reason, _ := strings.Cut(text, " ")
		switch {
		case name == "PUBLISH" || name == "SPUBLISH":
			d.note("rights", d.name, name+": "+reason, "A waiter learns of a release only by its next poll, up to a second later.", mendRights)
		case name == "HGETALL" || name == "ZCOUNT" || name == "PEXPIREAT":
			d.note("rights", d.name, name+": "+reason, "Locks of WithSlots and WithShared cannot be used without it.", mendRights)
		default:
			d.serious("rights", d.name, name+": "+reason, "Locks cannot be taken, kept or released without it.", mendRights)
		}
		ok = false
	}
	if ok {
		d.fine("rights", d.name, "every command of the scripts is allowed, on keys named "+d.Prefix+"leasehold:…")
	}
}

// messages sends one to itself.
func (d *deployment) messages(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	name, sharded := d.channel(d.probe())
	subscribe := d.client.Subscribe
	if sharded {
		subscribe = d.client.SSubscribe
	}
	p := subscribe(ctx, name)
	defer p.Close()
	_, err := p.Receive(ctx)
	if err == nil {
		if sharded {
			err = d.client.SPublish(ctx, name, "0").Err()
		} else {
			err = d.client.Publish(ctx, name, "0").Err()
		}
	}
	if err == nil {
		_, err = p.ReceiveMessage(ctx)
	}
	if err == nil {
		d.fine("messages", d.name, "a message arrives")
		return
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.New("no message within 2s")
	}
	d.note("messages", d.name, err.Error(), "A waiter learns of a release only by its next poll, up to a second later.", mendRights)
}
