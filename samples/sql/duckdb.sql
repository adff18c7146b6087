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
  union all select 'ttfc_from_send', (first_content_ns - sent_ns) / 1e6 from exchanges where answered
  union all select 'tpot', (last_token_ns - first_token_ns) / 1e6 / (output_tokens - coalesce(nullif(event_tokens[1], 0), 1))
    from exchanges where answered and event_choice is null and coalesce(n, 1) = 1 and output_tokens > coalesce(nullif(event_tokens[1], 0), 1)
  union all select 'itl', gap / tokens from (select gap, tokens, unnest(range(tokens)) from gaps where tokens > 0 and flags & 7 = 0)
  union all select 'event_gap', gap from gaps where flags & 7 = 0
  union all select 'e2el', coalesce(last_token_ns, end_ns) / 1e6 from exchanges where complete
  union all select 'e2el_from_send', (coalesce(last_token_ns, end_ns) - sent_ns) / 1e6 from exchanges where complete
  union all select 'end', end_ns / 1e6 from exchanges where complete
  union all select 'client_delay', client_delay_us / 1e3 from exchanges
  union all select 'send_lag', sent_ns / 1e6 from exchanges where phase <> 'record'
)
select metric, count(ms) as n, avg(ms) as mean, stddev_pop(ms) as std, quantile_cont(ms, 0.5) as p50, quantile_cont(ms, 0.9) as p90,
       quantile_cont(ms, 0.95) as p95, quantile_cont(ms, 0.99) as p99, max(ms) as max
from samples where ms is not null group by metric order by metric;

-- And the figures of the whole run.
with exchanges as (
  select *, coalesce(end_reason, '') = 'not_sent' as dropped,
         error_kind is not null or coalesce(end_reason, '') not in ('', 'complete', 'client_abort', 'run_end', 'capture_cut', 'not_sent') as failed
  from read_parquet(getvariable('run'), union_by_name = true) where phase <> 'warmup'
), run as (
  select count(*) filter (not dropped) as sent, count(*) as scheduled,
         (max(arrival_unix_ns + greatest(coalesce(end_ns, 0), coalesce(last_token_ns, 0), 0)) - min(arrival_unix_ns)) / 1e9 as seconds,
         sum(input_tokens) filter (not dropped) as input, sum(output_tokens) filter (not dropped) as output,
         count(*) filter (failed and not dropped) as failed, count(*) filter (not failed and end_reason = 'client_abort') as aborted
  from exchanges
)
select 'request_rate' as figure, sent / seconds as value from run
union all select 'input_rate', input / seconds from run
union all select 'output_rate', output / seconds from run
union all select 'error_rate', failed / sent from run
union all select 'abort_rate', aborted / sent from run
union all select 'drop_rate', (scheduled - sent) / scheduled from run;
