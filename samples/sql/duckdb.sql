-- The figures of `shadowtape analyze` from the files of a run or a recorded trace, in DuckDB:
--   duckdb -c "set variable run = 'run1/exchanges-*.parquet'" -f samples/sql/duckdb.sql
-- Latencies in milliseconds from the scheduled time, warm-up and failed requests left out; percentiles by linear interpolation at (n-1)p.
-- Requests with several choices (n > 1) have their tpot and itl per choice, which is left to analyze.
with exchanges as (
  select *, event_gap_us as gaps,
         error_kind is null and coalesce(end_reason, '') in ('', 'complete', 'client_abort', 'run_end', 'capture_cut') as answered,
         error_kind is null and end_reason = 'complete' as complete
  from read_parquet(getvariable('run'), union_by_name = true)
  where phase <> 'warmup' and coalesce(end_reason, '') <> 'not_sent'
), gaps as (  -- the gap before each event but the first, and the tokens that it brought
  select unnest(gaps[2:]) / 1e3 as gap, unnest(coalesce(event_tokens[2:], [1 for g in gaps[2:]])) as tokens,
         unnest(coalesce(event_flags[2:], [0 for g in gaps[2:]])) as flags
  from exchanges where answered and event_choice is null and len(gaps) > 1
), samples as (
  select 'ttft' as metric, first_token_ns / 1e6 as ms from exchanges where answered
  union all select 'ttft_from_send', (first_token_ns - sent_ns) / 1e6 from exchanges where answered
  union all select 'ttfc', first_content_ns / 1e6 from exchanges where answered
  union all select 'tpot', (last_token_ns - first_token_ns) / 1e6 / (output_tokens - coalesce(nullif(event_tokens[1], 0), 1))
    from exchanges where answered and event_choice is null and coalesce(n, 1) = 1 and output_tokens > coalesce(nullif(event_tokens[1], 0), 1)
  union all select 'itl', gap / tokens from (select gap, tokens, unnest(range(tokens)) from gaps where tokens > 0 and flags & 7 = 0)
  union all select 'event_gap', gap from gaps where flags & 7 = 0
  union all select 'e2el', coalesce(last_token_ns, end_ns) / 1e6 from exchanges where complete
  union all select 'send_lag', sent_ns / 1e6 from exchanges where phase <> 'record'
)
select metric, count(ms) as n, avg(ms) as mean, stddev_pop(ms) as std, quantile_cont(ms, 0.5) as p50, quantile_cont(ms, 0.9) as p90,
       quantile_cont(ms, 0.95) as p95, quantile_cont(ms, 0.99) as p99, max(ms) as max
from samples where ms is not null group by metric order by metric;
