package schedule

import (
	"fmt"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// ShardOf says which of n shards (1 … n) an exchange belongs to: by its session, or by itself where it has none. The hash is another than
// that of Thin, and than that by which a session keeps to a target.
func ShardOf(x *formats.Exchange, n int) int {
	return 1 + int(stats.Mix(SessionKey(x)^0x5a4d)%uint64(n))
}

// rememberCallers is how many of its own arrivals a shard remembers for the sub-agents that they call, as ThinkTime does.
const rememberCallers = Remembered

// Shard marks as Other what shard i of n (1 … n) does not send. Every session is one shard's, whole, in all passes. It is the last transform:
// each shard goes through the whole schedule, so that ends, loops, rates and positions in it are those of the whole, and the shards together
// send exactly what one replayer would. A sub-agent's first request whose caller is another shard's cannot wait for its answer: it comes at
// its recorded time. It panics on a shard that is none; Selection.Validate catches what a user gives.
func Shard(s Arrivals, i, n int) Arrivals {
	if n == 0 || n == 1 && i == 1 {
		return s
	}
	if i < 1 || i > n {
		panic(fmt.Sprintf("schedule: shard %d of %d", i, n))
	}
	type id struct {
		loop int32
		id   uint64
	}
	return func(yield func(Arrival, error) bool) {
		own := map[id]bool{}
		var order []id // of own, oldest first
		for a, err := range s {
			if err == nil {
				x := a.Exchange
				if a.Other = ShardOf(x, n) != i; !a.Other {
					if a.After != 0 && x.ParentID.Valid && a.After == uint64(x.ParentID.V) && !own[id{a.Loop, a.After}] {
						a.After, a.Think, a.NotBefore = 0, 0, false
					}
					k := id{a.Loop, uint64(x.ExchangeID)}
					own[k] = true
					if order = append(order, k); len(order) > rememberCallers {
						delete(own, order[0])
						order = order[1:]
					}
				}
			}
			if !yield(a, err) {
				return
			}
		}
	}
}
