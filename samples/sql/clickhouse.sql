-- The figures of `shadowtape analyze` from the files of a run or a recorded trace, in ClickHouse:
--   clickhouse local --param_run='run1/exchanges-*.parquet' --queries-file samples/sql/clickhouse.sql
-- Latencies in milliseconds from the scheduled time, warm-up and failed requests left out; percentiles by linear interpolation at (n-1)p.
-- Requests with several choices (n > 1) have their tpot and itl per choice, which is left to analyze.
with exchanges as (
  select *, ifNull(error_kind, '') = '' and ifNull(end_reason, '') in ('', 'complete', 'client_abort', 'run_end', 'capture_cut') as answered,
         ifNull(error_kind, '') = '' and ifNull(end_reason, '') = 'complete' as complete,
         arrayMap(t -> if(assumeNotNull(t) > 0, assumeNotNull(t), 1), event_tokens) as tokens_of
  from file({run:String}, Parquet)
  where phase != 'warmup' and ifNull(end_reason, '') != 'not_sent'
), gaps as (  -- the gap before each event but the first, and the tokens that it brought
  select assumeNotNull(g) / 1e3 as gap, assumeNotNull(t) as tokens, assumeNotNull(f) as flags
  from exchanges
  array join arraySlice(event_gap_us, 2) as g,
             if(empty(event_tokens), arrayMap(x -> 1, arraySlice(event_gap_us, 2)), arraySlice(event_tokens, 2)) as t,
             if(empty(event_flags), arrayMap(x -> 0, arraySlice(event_gap_us, 2)), arraySlice(event_flags, 2)) as f
  where answered and empty(event_choice)
), samples as (
  select 'ttft' as metric, first_token_ns / 1e6 as ms from exchanges where answered
  union all select 'ttft_from_send', (first_token_ns - sent_ns) / 1e6 from exchanges where answered
  union all select 'ttfc', first_content_ns / 1e6 from exchanges where answered
  union all select 'ttfc_from_send', (first_content_ns - sent_ns) / 1e6 from exchanges where answered
  union all select 'tpot', (last_token_ns - first_token_ns) / 1e6 / (output_tokens - if(empty(tokens_of), 1, tokens_of[1]))
    from exchanges where answered and empty(event_choice) and ifNull(n, 1) = 1 and output_tokens > if(empty(tokens_of), 1, tokens_of[1])
  union all select 'itl', gap / tokens from gaps array join range(tokens) as i where tokens > 0 and bitAnd(flags, 7) = 0
  union all select 'event_gap', gap from gaps where bitAnd(flags, 7) = 0
  union all select 'e2el', coalesce(last_token_ns, end_ns) / 1e6 from exchanges where complete
  union all select 'e2el_from_send', (coalesce(last_token_ns, end_ns) - sent_ns) / 1e6 from exchanges where complete
  union all select 'end', end_ns / 1e6 from exchanges where complete
  union all select 'client_delay', client_delay_us / 1e3 from exchanges
  union all select 'send_lag', sent_ns / 1e6 from exchanges where phase != 'record'
)
select metric, count(ms) as n, avg(ms) as mean, stddevPop(ms) as std, quantileExactInclusive(0.5)(ms) as p50, quantileExactInclusive(0.9)(ms) as p90,
       quantileExactInclusive(0.95)(ms) as p95, quantileExactInclusive(0.99)(ms) as p99, max(ms) as max
from samples where ms is not null group by metric order by metric;

-- And the figures of the whole run.
with exchanges as (
  select *, ifNull(end_reason, '') = 'not_sent' as dropped,
         ifNull(error_kind, '') != '' or ifNull(end_reason, '') not in ('', 'complete', 'client_abort', 'run_end', 'capture_cut', 'not_sent') as failed
  from file({run:String}, Parquet) where phase != 'warmup'
), run as (
  select countIf(not dropped) as sent, count() as scheduled,
         (max(arrival_unix_ns + greatest(ifNull(end_ns, 0), ifNull(last_token_ns, 0), 0)) - min(arrival_unix_ns)) / 1e9 as seconds,
         sumIf(input_tokens, not dropped) as input, sumIf(output_tokens, not dropped) as output,
         countIf(failed and not dropped) as failures, countIf(not failed and ifNull(end_reason, '') = 'client_abort') as aborted
  from exchanges
)
select 'request_rate' as figure, sent / seconds as value from run
union all select 'input_rate', input / seconds from run
union all select 'output_rate', output / seconds from run
union all select 'error_rate', failures / sent from run
union all select 'abort_rate', aborted / sent from run
union all select 'drop_rate', (scheduled - sent) / scheduled from run;
