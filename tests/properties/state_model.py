"""What the state should be: a dumb model of dicts, lists and the rules in plain words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from timeball.cluster.state.jitter import jitter_offset
from timeball.cluster.state.limits import ATTEMPTS_KEPT, MAX_LEAD_MS
from timeball.cluster.state.operations import (
    ClusterSettings,
    Every,
    KeyRule,
    Options,
    RetryPolicy,
    Timetable,
)
from timeball.cluster.state.queue_settings import (
    QueueSettings,
    RateLimit,
)
from timeball.cluster.state.records import (
    ExecutionState,
    FateKind,
    JobState,
    Origin,
    Outcome,
)
from timeball.cluster.state.usual import NO_OPTIONS
from timeball.cluster.state.verdicts import (
    Backfilled,
    CancelStatus,
    Changed,
    ChangeStatus,
    CreateStatus,
    Moved,
    QueueConfigured,
    Triggered,
    TriggerStatus,
    Verdict,
)

EPOCH_MS = 1_764_480_000_000
TERMINAL = (
    ExecutionState.SUCCEEDED,
    ExecutionState.DEAD,
    ExecutionState.CANCELLED,
    ExecutionState.SKIPPED,
)
HELD = (ExecutionState.LEASED, ExecutionState.RUNNING)
SETTINGS = ClusterSettings(
    keep_finished=4,
    keep_finished_ms=20_000,
    keep_dead=3,
    idempotency_window_ms=9_000,
    idempotency_keys=2,
    claim_memory_ms=5_000,
    max_pending=12,
    request_memory_ms=7_000,
    request_memory=3,
    claim_memory=3,
    catch_up_per_s=1,
    idempotency_max_window_ms=20_000,
    idempotency_keys_held=2,
)
KEY_RULES = [
    None,
    KeyRule(300),
    KeyRule(20_000, within_queue=True),
    KeyRule(reject=True),
    KeyRule(20_001),
    KeyRule(until_ended=True),
    KeyRule(until_ended=True, within_queue=True, reject=True),
    KeyRule(5, until_ended=True),
]


TIMETABLES = [
    Timetable((Every(1_000, 0),)),
    Timetable((Every(1_000, 0),), overlap="skip"),
    Timetable((Every(1_000, 0),), overlap="buffer_one", pause_on_failure=True),
    Timetable((Every(1_000, 0),), overlap="cancel_running", jitter_ms=900),
]


POLICIES = [
    *(RetryPolicy(attempts, 1_000, 200, 3_000, 0) for attempts in (1, 2, 3)),
    RetryPolicy(4, 400, max_ms=1_000, jitter_pct=0, backoff="linear"),
    RetryPolicy(3, 300, jitter_pct=0, backoff="fixed", non_retryable_errors=("KeyError",)),
    RetryPolicy(4, jitter_pct=0, max_ms=2_000, backoff="list", delays_ms=(0, 700, 2_500)),
]


OPTIONS = [
    *[None] * 4,
    Options(expires_after_ms=1_000),
    Options(expires_after_ms=2_500, requires=("a",)),
    Options(expires_ms=EPOCH_MS + 6_000, tags=("t",)),
    Options(expires_ms=EPOCH_MS + 9_000, expires_after_ms=3_000),
    *(Options(key) for key in ("k1", "k1", "k2")),
    Options("k", ("a", "b"), ("t", "u")),
]
RATES = [RateLimit(1, 1_000, 2), RateLimit(3, 700, 1), RateLimit(2, 5_000, 3)]


def backoff_ms(policy, used):
    """What the delay should be, without jitter, by the words of the protocol."""
    plain_ms = {
        "exponential": policy.initial_ms * 2 ** (used - 1),
        "linear": policy.initial_ms * used,
        "fixed": policy.initial_ms,
        "list": (policy.delays_ms[used - 1 : used] or policy.delays_ms[-1:] or (0,))[0],
    }[policy.backoff]
    return min(plain_ms, policy.max_ms)


@dataclass
class ModelExecution:
    hold: tuple[int, int]
    job: ModelJob
    due_ms: int
    state: ExecutionState = ExecutionState.SCHEDULED
    token: int = 0
    used: int = 0
    cancel_requested: bool = False
    ended_ms: int = 0
    result: bytes = b""
    attempts: list[list] = field(default_factory=list)  # [token, outcome, progress]
    errors: dict = field(default_factory=dict)  # by token
    completions: int = 0
    sequence: int = 0
    origin: Origin = Origin.TIMETABLE
    reason: str = ""
    definition: tuple = ()  # what it began with, once the job has another

    def place(self):
        began = 1 if self.token else 2
        rank = began if self.state is ExecutionState.SCHEDULED else 0
        return rank, self.due_ms, self.sequence, self.hold[1]


@dataclass
class ModelJob:
    id: int
    queue: str
    definition: tuple  # payload, retry policy, priority
    timetable: Timetable | None
    planned_ms: int
    ended: bool
    cancelled: bool = False
    executions: dict[int, ModelExecution] = field(default_factory=dict)
    version: int = 1
    name: str = ""
    passed_ms: int = 0
    paused: str | None = None
    parked: str = ""
    fates: Counter = field(default_factory=Counter)
    options: Options = NO_OPTIONS
    unique: tuple | None = None  # name, fingerprint and first nominal time, until it has ended

    @property
    def recurring(self):
        return self.timetable is not None

    @property
    def key(self):
        return self.options.concurrency_key

    def moves(self):
        return self.recurring and not self.ended and self.paused is None and not self.parked

    def live(self):
        return [one for one in self.executions.values() if one.state not in TERMINAL]

    def state(self):
        if self.cancelled:
            return JobState.CANCELLED
        idle = all(one.state in TERMINAL for one in self.executions.values())
        return JobState.COMPLETED if self.ended and idle else JobState.ACTIVE


@dataclass
class ModelQueue:
    """Settings, and the tokens that the rate limit's bucket held at a moment."""

    settings: QueueSettings
    version: int
    tokens: Fraction = Fraction(0)
    at_ms: int = 0

    def refill(self, now_ms):
        rate = self.settings.rate_limit
        come = Fraction((now_ms - self.at_ms) * rate.executions, rate.per_ms)
        self.tokens = min(Fraction(rate.burst), self.tokens + come)
        self.at_ms = now_ms


class Model:
    """What the state should be."""

    def __init__(self):
        self.jobs = {}
        self.now_ms = 0
        self.next_job = self.next_token = 0
        self.finished = []  # (ended_ms, execution or job), in order
        self.dead = []
        self.keys = []  # (name, ends_ms, fingerprint, job, nominal_ms, class), with a window
        self.held = {}  # name: (fingerprint, job, nominal_ms)
        self.requests = []  # (id, since_ms, answer as tuples, of a trigger)
        self.claims = []  # (id, since_ms, grants)
        self.counts = Counter()
        self.queues = {}  # those with settings of their own
        self.told = {}  # workers
        self.spent = []  # when each run of the past may be forgotten by the budget

    def execution(self, hold):
        job = self.jobs.get(hold[0])
        return job and job.executions.get(hold[1])

    def executions(self):
        return [
            job.executions[nominal_ms]
            for job in self.jobs.values()
            for nominal_ms in sorted(job.executions)
        ]

    def pending(self):
        return [one for one in self.executions() if one.state is ExecutionState.SCHEDULED]

    def remembered(self, memory, key, window_ms):
        for record in reversed(memory):
            if record[0] == key:
                return record if record[1] + window_ms > self.now_ms else None
        return None

    # Operations

    def create(self, request_id, new_jobs):
        if request_id:
            known = self.remembered(self.requests, request_id, SETTINGS.request_memory_ms)
            if known and known[3]:
                return True, []
            if known:
                self.counts["duplicates"] += len(known[2])
                return True, known[2]
        answer = [self.create_one(new) for new in new_jobs]
        known = (CreateStatus.CREATED, CreateStatus.DUPLICATE)
        if request_id and any(status in known for status, _, _ in answer):
            self.requests.append((request_id, self.now_ms, answer, False))
        return False, answer

    def create_one(self, new, name=""):
        key, rule = new.idempotency_key, new.key_rule or KeyRule()
        key_name = (rule.within_queue and new.queue, key)
        known = key and self.holder(key_name)
        if known:
            if known[0] != new.fingerprint:
                return CreateStatus.KEY_REUSED, 0, 0
            self.counts["rejected" if rule.reject else "duplicates"] += 1
            status = CreateStatus.REJECTED if rule.reject else CreateStatus.DUPLICATE
            job = self.jobs.get(known[1])
            one_shot = job and not job.recurring
            return status, known[1], job.planned_ms if one_shot else known[2]
        too_long = rule.window_ms > SETTINGS.idempotency_max_window_ms
        if too_long or (rule.until_ended and rule.window_ms) or (new.key_rule and not key):
            return CreateStatus.INVALID, 0, 0
        if new.queue in self.queues and self.queues[new.queue].settings.state == "draining":
            return CreateStatus.DRAINING, 0, 0
        if len(self.pending()) >= SETTINGS.max_pending:
            return CreateStatus.FULL, 0, 0
        if rule.until_ended and len(self.held) >= SETTINGS.idempotency_keys_held:
            return CreateStatus.KEYS_FULL, 0, 0
        nominal_ms = new.first_ms or self.now_ms + new.delay_ms
        definition = (new.payload, new.retry, new.priority)
        job = ModelJob(
            *(self.next_job, new.queue, definition),
            *(new.timetable, nominal_ms),
            new.timetable is None,
            name=name,
            passed_ms=min(self.now_ms, nominal_ms - 1),
            options=new.options or NO_OPTIONS,
        )
        self.next_job += 1
        self.jobs[job.id] = job
        self.add_execution(job, nominal_ms, job.id)
        job.fates["made"] += job.recurring
        job.fates["runs"] += job.recurring
        if rule.until_ended:
            job.unique = key_name, new.fingerprint, nominal_ms
            self.held[key_name] = new.fingerprint, job.id, nominal_ms
        elif key:
            window_ms = rule.window_ms or SETTINGS.idempotency_window_ms
            what = new.fingerprint, job.id, nominal_ms
            self.keys.append((key_name, self.now_ms + window_ms, *what, window_ms.bit_length()))
        return CreateStatus.CREATED, job.id, nominal_ms

    def holder(self, key_name):
        """(fingerprint, job, nominal_ms) of what holds a key."""
        self.free_keys()
        windowed = [key[2:5] for key in self.keys if key[0] == key_name and key[1] > self.now_ms]
        return self.held.get(key_name) or (windowed and windowed[-1])

    def free_keys(self):
        """Keys that were held by what has ended."""
        for key_name, (_, job_id, _) in list(self.held.items()):
            job = self.jobs.get(job_id)
            if job is None or (job.state() is not JobState.ACTIVE and not job.live()):
                del self.held[key_name]

    def add_execution(self, job, nominal_ms, sequence=None, **rest):
        self.counts["created"] += 1
        if sequence is None:
            self.next_occurrence += 1
            sequence = self.next_occurrence
        jitter_ms = job.timetable.jitter_ms if job.timetable else 0
        due_ms = rest.pop("due_ms", nominal_ms + jitter_offset(job.id, jitter_ms))
        one = ModelExecution((job.id, nominal_ms), job, due_ms, sequence=sequence, **rest)
        job.executions[nominal_ms] = one
        if self.expires_ms(one) <= due_ms:
            self.lapse(one)
        return one

    def expires_ms(self, one):
        options = one.job.options
        bounds = [options.expires_ms] if options.expires_ms else []
        if options.expires_after_ms and one.origin is not Origin.BACKFILL:
            bounds.append(one.hold[1] + options.expires_after_ms)
        return min(bounds, default=2**62)

    def lapse(self, one):
        one.reason = "expired"
        self.end(one, ExecutionState.SKIPPED)
        self.counts["skipped_expired"] += 1
        if one.job.recurring and one.origin is Origin.TIMETABLE:
            one.job.fates["lost"] += 1
            self.count(one.job, FateKind.SKIPPED, 1)

    def skip_expired(self, hold):
        one = self.execution(hold)
        if not one:
            return Verdict.UNKNOWN
        if one.state is not ExecutionState.SCHEDULED or self.expires_ms(one) > self.now_ms:
            return Verdict.STALE
        self.lapse(one)
        return Verdict.ACCEPTED

    def skip_expired_of(self, job):
        for _, one in sorted(job.executions.items()):
            waits = one.state is ExecutionState.SCHEDULED
            if waits and self.expires_ms(one) <= max(self.now_ms, one.due_ms):
                self.lapse(one)

    def ahead(self, one):
        """Who goes before this one, where a job's occurrences go one at a time."""
        if not one.job.recurring or one.job.timetable.overlap == "allow":
            return []
        others = sorted(one.job.live(), key=ModelExecution.place)
        return [other for other in others if other.place() < one.place()]

    def claim(self, request_id, holds, offered):
        known = request_id and self.remembered(self.claims, request_id, SETTINGS.claim_memory_ms)
        if known:
            still = {
                hold: token
                for hold, token in known[2]
                if (one := self.execution(hold)) and one.state in HELD and one.token == token
            }
            return [still.get(hold, 0) for hold in holds]
        tokens = []
        for hold in holds:
            token, self.next_token = self.next_token, self.next_token + 1
            one = self.execution(hold)
            near_ms = self.now_ms + MAX_LEAD_MS
            fit = one and one.state is ExecutionState.SCHEDULED and one.due_ms <= near_ms
            fit = fit and set(one.job.options.requires) <= set(offered)
            fit = fit and self.now_ms < self.expires_ms(one) and not self.ahead(one)
            if fit and self.admits(one.job):
                one.state, one.token = ExecutionState.LEASED, token
                one.used += 1
                one.attempts = [*one.attempts, [token, Outcome.OPEN, b""]][-ATTEMPTS_KEPT:]
                self.counts["claimed"] += 1
                tokens.append(token)
            else:
                tokens.append(0)
        grants = [(hold, token) for hold, token in zip(holds, tokens, strict=True) if token]
        if request_id and grants:
            self.claims.append((request_id, self.now_ms, grants))
        return tokens

    def admits(self, job):
        """Whether the settings of its queue let an execution of the job be leased."""
        if job.queue not in self.queues:
            return True
        queue = self.queues[job.queue]
        settings, rate = queue.settings, queue.settings.rate_limit
        leased = [
            one.job.key
            for one in self.executions()
            if one.job.queue == job.queue and one.state in HELD
        ]
        if settings.state == "paused":
            return False
        if settings.max_concurrency and len(leased) >= settings.max_concurrency:
            return False
        most = settings.max_concurrency_per_key
        if most and job.key and leased.count(job.key) >= most:
            return False
        if rate:
            queue.refill(self.now_ms)
            if queue.tokens < 1:
                return False
            queue.tokens -= 1
        return True

    def configure(self, name, version, change):
        known = self.queues.get(name)
        before = known.settings if known else QueueSettings()
        at = known.version if known else 0
        if version not in (-1, at):
            return QueueConfigured(ChangeStatus.OTHER_VERSION, at, before)
        rate = before.rate_limit
        if change.rate_limit:
            rate = change.rate_limit if change.rate_limit.executions else None
        numbers = [
            getattr(before if getattr(change, name) == -1 else change, name)
            for name in ("max_concurrency", "max_concurrency_per_key")
        ]
        settings = QueueSettings(change.state or before.state, *numbers, rate)
        if settings == before:
            return QueueConfigured(ChangeStatus.UNCHANGED, at, before)
        if not name or settings.state == "closed" or min(numbers) < 0:
            return QueueConfigured(ChangeStatus.INVALID, at, before)
        self.counts["configured"] += 1
        if settings == QueueSettings():
            del self.queues[name]
            return QueueConfigured(ChangeStatus.CHANGED, 0, settings)
        at = self.counts["configured"]
        after = ModelQueue(settings, at, at_ms=self.now_ms)
        if rate:
            after.tokens = Fraction(rate.burst)
            if before.rate_limit:
                known.refill(self.now_ms)
                after.tokens = known.tokens
            if before.rate_limit and before.rate_limit != rate:
                used = -(-(before.rate_limit.burst - known.tokens) // 1)
                after.tokens = max(Fraction(0), rate.burst - used)
        self.queues[name] = after
        return QueueConfigured(ChangeStatus.CHANGED, at, settings)

    def instruct(self, worker, instruction):
        if instruction == "":
            known = self.told.pop(worker, None)
            return ChangeStatus.CHANGED if known else ChangeStatus.UNCHANGED
        if not worker or instruction == "sing":
            return ChangeStatus.INVALID
        self.told.pop(worker, None)
        self.told[worker] = (instruction, self.now_ms)
        return ChangeStatus.CHANGED

    def start(self, hold, token):
        one = self.execution(hold)
        if not one:
            return Verdict.UNKNOWN
        if one.state in HELD and token == one.token:
            if one.state is ExecutionState.RUNNING:
                return Verdict.DUPLICATE
            one.state = ExecutionState.RUNNING
            return Verdict.ACCEPTED
        self.counts["stale"] += 1
        over = token and token == one.token and one.state in TERMINAL
        return Verdict.FINISHED if over else Verdict.STALE

    def report_progress(self, hold, token, progress):
        one = self.execution(hold)
        if not one:
            return Verdict.UNKNOWN
        if one.state in HELD and token == one.token:
            one.attempts[-1][2] = progress
            return Verdict.ACCEPTED
        over = token and token == one.token and one.state in TERMINAL
        return Verdict.FINISHED if over else Verdict.STALE

    def report(self, hold, token, outcome, result=b"", delay_ms=-1, failure=()):
        non_retryable, error_type, backtrace = failure or (False, "", "")
        one = self.execution(hold)
        if not one:
            return Verdict.UNKNOWN
        known = next((ended for granted, ended, _ in one.attempts if granted == token), None)
        if known is outcome:
            if outcome is Outcome.SUCCEEDED and result != one.result:
                self.counts["stale"] += 1
                return Verdict.FINISHED
            return Verdict.DUPLICATE
        expiry = outcome in (Outcome.LEASE_EXPIRED, Outcome.TIMED_OUT)
        verdict = Verdict.ACCEPTED
        if known is None or token != one.token:
            verdict = Verdict.STALE
        elif one.state in TERMINAL:
            verdict = Verdict.FINISHED
        elif known is not Outcome.OPEN and (expiry or known in (Outcome.FAILED, Outcome.RELEASED)):
            verdict = Verdict.STALE
        if verdict is not Verdict.ACCEPTED:
            self.counts["stale"] += not expiry
            return verdict
        one.attempts[-1][1] = outcome
        if error_type or backtrace:
            one.errors[token] = error_type, backtrace[-8_192:]
        if outcome is Outcome.SUCCEEDED:
            one.result = result
            one.completions += 1
            assert one.completions == 1
            self.counts["succeeded"] += 1
            self.end(one, ExecutionState.SUCCEEDED)
        elif outcome is Outcome.RELEASED:
            one.used = max(0, one.used - 1)
            self.counts["released"] += 1
            self.go_on(one, self.now_ms)
        else:
            self.counts["expired" if expiry else "failed"] += 1
            policy = (one.definition or one.job.definition)[1]
            growing_ms = backoff_ms(policy, max(one.used, 1))
            exhausted = ""
            if one.used >= policy.max_attempts:
                exhausted = f"attempts_exhausted:{outcome.name.lower()}"
            if error_type in policy.non_retryable_errors:
                exhausted = "non_retryable_error"
            if non_retryable:
                exhausted = "non_retryable"
            held = one.state in HELD
            self.go_on(one, self.now_ms + (growing_ms if delay_ms < 0 else delay_ms), exhausted)
            if held and one.state is ExecutionState.SCHEDULED:
                self.counts["retried"] += 1
        return verdict

    def go_on(self, one, due_ms, exhausted=""):
        if one.cancel_requested:
            self.counts["cancelled"] += 1
            self.end(one, ExecutionState.CANCELLED)
        elif exhausted:
            self.counts["died"] += 1
            one.reason = exhausted
            self.end(one, ExecutionState.DEAD)
        else:
            if one.state in HELD:  # it may have been leased ahead of its due time
                due_ms = max(due_ms, one.due_ms)
            if self.expires_ms(one) <= due_ms:
                self.lapse(one)
            else:
                one.state, one.due_ms = ExecutionState.SCHEDULED, due_ms

    def end(self, one, state):
        one.state, one.ended_ms = state, self.now_ms
        if state is ExecutionState.DEAD:
            self.dead.append(one)
            if one.job.recurring and one.job.timetable.pause_on_failure and one.job.moves():
                self.pause_now(one.job, "failure")
        else:
            one.definition = ()
            self.finished.append((self.now_ms, one))

    def cancel(self, job_id):
        job = self.jobs.get(job_id)
        if not job:
            return CancelStatus.UNKNOWN
        if job.state() is JobState.COMPLETED:
            return CancelStatus.FINISHED
        executions = [one for _, one in sorted(job.executions.items())]
        if not job.cancelled:
            if not executions and not job.ended:
                self.finished.append((self.now_ms, job))
            job.cancelled = job.ended = True
            for one in executions:
                if one.state is ExecutionState.SCHEDULED:
                    self.counts["cancelled"] += 1
                    self.end(one, ExecutionState.CANCELLED)
                elif one.state in HELD:
                    one.cancel_requested = True
        if any(one.state in HELD for one in executions):
            return CancelStatus.REQUESTED
        if not job.recurring and executions[0].state is not ExecutionState.CANCELLED:
            return CancelStatus.FINISHED
        return CancelStatus.CANCELLED

    def room(self):
        self.spent = [at_ms for at_ms in self.spent if at_ms > self.now_ms]
        return 10 - len(self.spent)

    def advance(self, item):
        job = self.jobs.get(item.job)
        if not job or not job.moves():
            return Moved.STALE
        if (job.version, job.planned_ms) != (item.version, item.after_ms):
            return Moved.STALE
        instants = [item.after_ms, *item.nominals]
        if sorted(set(instants)) != instants or item.planned_ms < instants[-1]:
            return Moved.UNSOUND
        if item.planned_ms == item.after_ms and not item.ended:
            return Moved.UNSOUND
        if not 0 <= item.caught_up <= len(item.nominals) + 1:
            return Moved.UNSOUND
        if item.caught_up > self.room():
            return Moved.NO_BUDGET
        for _ in range(item.caught_up):
            self.spent.append(max([self.now_ms, *self.spent]) + 1_000)
        self.counts["caught_up"] += item.caught_up
        job.passed_ms = max(instants[:-1] or instants)
        job.passed_ms = max([job.passed_ms, *(fate.last_ms for fate in item.fates)])
        job.passed_ms = min(job.passed_ms, item.planned_ms)
        job.planned_ms = item.planned_ms
        for fate in item.fates:
            self.count(job, FateKind(fate.kind), fate.count)
        made = []
        pending = job.executions.get(item.after_ms)
        if pending and pending.state is ExecutionState.SCHEDULED and not pending.token:
            if item.pending:
                self.skip(pending, FateKind(item.pending.kind), item.pending.reason)
                job.fates["made"] -= 1
            else:
                made.append(pending)
        for nominal_ms in item.nominals:
            job.fates["made"] += 1
            job.fates["runs"] += 1
            present = job.executions.get(nominal_ms)
            if present is None:
                made.append(self.add_execution(job, nominal_ms))
            elif present.origin is Origin.TRIGGER:
                present.origin = Origin.TIMETABLE
        for one in made:
            if one.due_ms <= self.now_ms:
                self.settle(one)
        if item.ended:
            if not job.executions:
                self.finished.append((self.now_ms, job))
            job.ended = True
        return Moved.MOVED

    def count(self, job, kind, count):
        job.fates[kind.name.lower()] += count
        self.counts[kind.name.lower()] += count

    def skip(self, one, kind, reason):
        one.reason = f"{kind.name.lower()}:{reason}"
        self.end(one, ExecutionState.SKIPPED)
        if one.origin is Origin.TIMETABLE:
            one.job.fates["lost"] += 1
            self.count(one.job, kind, 1)

    def settle(self, one):
        rule = one.job.timetable.overlap
        if rule == "allow" or one.state is not ExecutionState.SCHEDULED or one.token:
            return
        self.skip_expired_of(one.job)
        ahead = self.ahead(one)
        if not ahead or one.state is not ExecutionState.SCHEDULED:
            return
        waiting = [other for other in ahead[1:] if other.origin is not Origin.BACKFILL]
        if rule == "skip" or (rule == "buffer_one" and waiting):
            self.skip(one, FateKind.SKIPPED, "overlap")
        if rule == "cancel_running":
            for other in ahead:
                if other.origin is Origin.BACKFILL:
                    continue
                if other.state in HELD:
                    other.cancel_requested = True
                elif other.token:
                    other.reason = "superseded"
                    self.counts["cancelled"] += 1
                    self.end(other, ExecutionState.CANCELLED)
                else:
                    self.skip(other, FateKind.SKIPPED, "superseded")

    def withdraw_pending(self, job, jitter_ms):
        one = job.executions.get(job.planned_ms)
        untouched = one and one.state is ExecutionState.SCHEDULED and not one.token
        if untouched and one.due_ms > self.now_ms and one.origin is Origin.TIMETABLE:
            del job.executions[job.planned_ms]
            job.fates["made"] -= 1
            job.fates["runs"] -= 1
            self.counts["withdrawn"] += 1
            present_ms = self.now_ms - jitter_offset(job.id, jitter_ms)
            job.planned_ms = max(job.passed_ms, min(job.planned_ms - 1, present_ms))

    def pause_now(self, job, reason):
        self.withdraw_pending(job, job.timetable.jitter_ms)
        job.paused = reason

    def changeable(self, job):
        if not job:
            return ChangeStatus.UNKNOWN
        if not job.recurring:
            return ChangeStatus.NOT_RECURRING
        return ChangeStatus.ENDED if job.ended else None

    def pause(self, job_id, reason):
        job = self.jobs.get(job_id)
        refused = self.changeable(job)
        if refused:
            return Changed(refused)
        if job.paused is not None:
            return Changed(ChangeStatus.UNCHANGED, job.id, job.version)
        self.pause_now(job, reason)
        return Changed(ChangeStatus.CHANGED, job.id, job.version)

    def resume(self, job_id):
        job = self.jobs.get(job_id)
        refused = self.changeable(job)
        if refused:
            return Changed(refused)
        if job.moves():
            return Changed(ChangeStatus.UNCHANGED, job.id, job.version)
        job.paused, job.parked = None, ""
        return Changed(ChangeStatus.CHANGED, job.id, job.version)

    def park(self, job_id, version, why):
        job = self.jobs.get(job_id)
        if not job or job.version != version or not job.moves():
            return False
        job.parked = why
        return True

    def trigger(self, job_id, request_id):
        known = request_id and self.remembered(
            self.requests, request_id, SETTINGS.request_memory_ms
        )
        if known:
            if not known[3] or known[2][0][1] != job_id:
                return Triggered(TriggerStatus.KEY_REUSED)
            self.counts["duplicates"] += 1
            return Triggered(TriggerStatus.DUPLICATE, known[2][0][2])
        job = self.jobs.get(job_id)
        if not job:
            return Triggered(TriggerStatus.UNKNOWN)
        if not job.recurring:
            return Triggered(TriggerStatus.NOT_RECURRING)
        if job.state() is not JobState.ACTIVE:
            return Triggered(TriggerStatus.ENDED)
        if len(self.pending()) >= SETTINGS.max_pending:
            return Triggered(TriggerStatus.FULL)
        nominal_ms = self.now_ms
        while nominal_ms in job.executions:
            nominal_ms += 1
        one = self.add_execution(job, nominal_ms, origin=Origin.TRIGGER, due_ms=nominal_ms)
        self.settle(one)
        if request_id:
            answer = [(CreateStatus.CREATED, job_id, nominal_ms)]
            self.requests.append((request_id, self.now_ms, answer, True))
        skipped = one.state is ExecutionState.SKIPPED
        return Triggered(TriggerStatus.SKIPPED if skipped else TriggerStatus.CREATED, nominal_ms)

    def backfill(self, job_id, version, nominals):
        job = self.jobs.get(job_id)
        if not job:
            return Backfilled(ChangeStatus.UNKNOWN)
        if not job.recurring:
            return Backfilled(ChangeStatus.NOT_RECURRING)
        if job.state() is not JobState.ACTIVE:
            return Backfilled(ChangeStatus.ENDED)
        if job.version != version:
            return Backfilled(ChangeStatus.OTHER_VERSION)
        if max(nominals) > self.now_ms:
            return Backfilled(ChangeStatus.INVALID)
        if len(self.pending()) + len(nominals) > SETTINGS.max_pending:
            return Backfilled(ChangeStatus.FULL)
        existing = [at_ms for at_ms in nominals if at_ms in job.executions]
        created = [at_ms for at_ms in nominals if at_ms not in job.executions]
        for at_ms in created:
            self.add_execution(job, at_ms, origin=Origin.BACKFILL, due_ms=self.now_ms)
        return Backfilled(ChangeStatus.CHANGED, created, existing)

    def put(self, name, new):
        known = [job for job in self.jobs.values() if job.name == name and not job.ended]
        if not known:
            status, job_id, _ = self.create_one(new, name)
            if status is not CreateStatus.CREATED:
                return Changed(ChangeStatus[status.name])
            return Changed(ChangeStatus.CREATED, job_id, 1)
        (job,) = known
        options = new.options or NO_OPTIONS
        if (job.queue, job.options.concurrency_key) != (new.queue, options.concurrency_key):
            return Changed(ChangeStatus.FIXED, job.id, job.version)
        definition = (new.payload, new.retry, new.priority)
        return self.change(job, definition, new.timetable, options)

    def update(self, job_id, version, change):
        job = self.jobs.get(job_id)
        if not job:
            return Changed(ChangeStatus.UNKNOWN)
        if version not in (0, job.version):
            return Changed(ChangeStatus.OTHER_VERSION, job.id, job.version)
        payload, policy, priority = job.definition
        definition = (
            payload if change.payload is None else change.payload,
            policy if change.retry is None else change.retry,
            priority if change.priority < 0 else change.priority,
        )
        had = job.options
        options = Options(
            had.concurrency_key,
            had.requires if change.requires is None else change.requires,
            had.tags if change.tags is None else change.tags,
            had.expires_ms if change.expires_ms < 0 else change.expires_ms,
            had.expires_after_ms if change.expires_after_ms < 0 else change.expires_after_ms,
        )
        if job.recurring:
            if change.first_ms:
                refused = self.changeable(job) or ChangeStatus.RECURRING
                return Changed(refused, job.id, job.version)
            return self.change(job, definition, change.timetable or job.timetable, options)
        (one,) = job.executions.values()
        if change.timetable:
            return Changed(ChangeStatus.NOT_RECURRING, job.id, job.version)
        if job.state() is not JobState.ACTIVE:
            return Changed(ChangeStatus.ENDED, job.id, job.version)
        if one.state is not ExecutionState.SCHEDULED or one.token:
            return Changed(ChangeStatus.BEGUN, job.id, job.version)
        nominal_ms = change.first_ms or one.hold[1]
        if (nominal_ms, definition, options) == (one.hold[1], job.definition, had):
            return Changed(ChangeStatus.UNCHANGED, job.id, job.version)
        one.hold, one.due_ms, job.planned_ms = (job.id, nominal_ms), nominal_ms, nominal_ms
        job.executions = {nominal_ms: one}
        job.definition, job.options = definition, options
        job.version += 1
        self.skip_expired_of(job)
        return Changed(ChangeStatus.CHANGED, job.id, job.version)

    def change(self, job, definition, timetable, options):
        if job.ended:
            return Changed(ChangeStatus.ENDED, job.id, job.version)
        same = (definition, timetable, options) == (job.definition, job.timetable, job.options)
        if same and not job.parked:
            return Changed(ChangeStatus.UNCHANGED, job.id, job.version)
        if definition != job.definition:
            for one in job.executions.values():
                if one.state is ExecutionState.DEAD or (one.token and one.state not in TERMINAL):
                    one.definition = one.definition or job.definition
        job.definition, job.options = definition, options
        job.version += 1
        job.parked = ""
        if timetable != job.timetable:
            self.withdraw_pending(job, timetable.jitter_ms)
            job.timetable = timetable
        self.skip_expired_of(job)
        return Changed(ChangeStatus.CHANGED, job.id, job.version)

    def dead_letter(self, hold, token):
        one = self.execution(hold)
        if not one:
            return Verdict.UNKNOWN
        other_death = token and token != one.token
        return Verdict.NOT_DEAD if one.state is not ExecutionState.DEAD or other_death else one

    def purge(self, hold, token):
        one = self.dead_letter(hold, token)
        if isinstance(one, Verdict):
            return one
        self.dead.remove(one)
        self.drop(one)
        self.counts["purged"] += 1
        return Verdict.ACCEPTED

    def replay(self, hold, token):
        one = self.dead_letter(hold, token)
        if isinstance(one, Verdict):
            return one
        if one.job.cancelled:
            return Verdict.JOB_CANCELLED
        if self.expires_ms(one) <= max(self.now_ms, one.due_ms):
            return Verdict.EXPIRED
        if one.job.unique:
            key_name, fingerprint, nominal_ms = one.job.unique
            other = self.holder(key_name)
            if other and other[1] != one.job.id:
                return Verdict.KEY_TAKEN
            self.held[key_name] = fingerprint, one.job.id, nominal_ms
        self.dead.remove(one)
        one.state, one.due_ms, one.used, one.ended_ms, one.completions = (
            *(ExecutionState.SCHEDULED, max(self.now_ms, one.due_ms)),
            *(0, 0, 0),
        )
        one.reason = ""
        self.counts["replayed"] += 1
        return Verdict.ACCEPTED

    # Retention

    def trim(self):
        oldest_ms = self.now_ms - SETTINGS.keep_finished_ms
        while self.finished and (
            len(self.finished) > SETTINGS.keep_finished or self.finished[0][0] <= oldest_ms
        ):
            _, ended = self.finished.pop(0)
            if isinstance(ended, ModelJob):
                del self.jobs[ended.id]
            else:
                self.drop(ended)
        while len(self.dead) > SETTINGS.keep_dead:
            self.drop(self.dead.pop(0))
        # By classes of windows: a key that is over may lie behind one of its class that is not.
        for number in {key[5] for key in self.keys}:
            for key in [key for key in self.keys if key[5] == number]:
                if key[1] > self.now_ms:
                    break
                self.keys.remove(key)
        self.counts["keys_forgotten"] += max(0, len(self.keys) - SETTINGS.idempotency_keys)
        self.keys = self.keys[-SETTINGS.idempotency_keys :]
        self.free_keys()
        while sum(len(answer) for _, _, answer, _ in self.requests) > SETTINGS.request_memory:
            self.requests.pop(0)
        while sum(len(grants) for *_, grants in self.claims) > SETTINGS.claim_memory:
            self.claims.pop(0)

    def drop(self, one):
        del one.job.executions[one.hold[1]]
        one.definition = ()
        if not one.job.executions and one.job.state() is not JobState.ACTIVE:
            del self.jobs[one.job.id]
