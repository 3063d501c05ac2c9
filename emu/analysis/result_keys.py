"""Keys of result.json: unit and meaning of each key.

Owns the descriptions, from which docs/result-json.md is generated. Does not own the values
(result_json.py).
Source: this project; a test compares the table with recorded result.json files.

In a key, `[]` denotes every element of a list, `.*` denotes keys that depend on the run, and
`{a,b}` denotes either of two names. A value or an object may be null if its description states
this.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

RESULT_KEYS: dict[str, tuple[str, str]] = {
    "schema_version": ("", "version of this format"),
    "ondie_version": ("", "version of the program"),
    "seed": ("", "seed of all random number generators"),
    "trace.name": ("", "name of the training trace"),
    "trace.sha256": ("", "SHA-256 of the trace file"),
    "trace.payload": ("", "origin of the gradients: recorded, synthetic or none"),
    "trace.timing_source": ("", "origin of forward and backward times: recorded or synthetic"),
    "trace.op": ("", "operation of the optimizer, such as adam"),
    "trace.n_params": ("parameters", "parameters of the model"),
    "trace.steps": ("steps", "simulated training steps"),
    "options.weights_up": ("", "number format of the weights sent to the host"),
    "options.form": ("", "form of the optimizer's equations: canonical or torch"),
    "options.format": ("", "storage format of weights, gradients and states"),
    "options.batch": (
        "",
        "path stannis: rule for the batches: same (global batch of the trace), paper (published "
        "batches), tuned (batches by STANNIS), or given (batches that the user gave)",
    ),
    "options.host_batch": (
        "samples", "path stannis: the host's batch if options.batch is given, otherwise "
        "its largest batch; null if the user gave no batch",
    ),
    "options.drive_batch": (
        "samples", "path stannis: batch of every drive; null if the user gave no batch",
    ),
    "options.cores_taken": ("", "path stannis: number of the host's cores that other programs use"),
    "options.slowdown": (
        "",
        "path stannis: model of the host's speed on its free cores; null if the model of the "
        "host's server is used",
    ),
    "options.allreduce": ("", "path stannis: algorithm of the gradient all-reduce"),
    "options.compression": ("%", "path smart_comp: size of the gradient after compression"),
    "options.{forward,backward}_s": (
        "s", "time per step that replaces the time of the trace; null if it is not replaced",
    ),
    "options.step_times": (
        "", "rule that the user requested: accelerator or trace; null if no rule was requested",
    ),
    "step_times.rule": ("", "rule for the times of forward and backward: accelerator or trace"),
    "step_times.text": ("", "explanation of the rule, with the times that the user stated"),
    "step_times.flop_per_s": (
        "FLOP/s", "speed of the accelerator on the model; null if the trace states the times",
    ),
    "options.offload.align": ("B", "size to whose multiples the arrays of a sub-group are padded"),
    "options.offload.buffers": (
        "buffers", "pinned host buffers, one array each; null if there is no limit",
    ),
    "options.offload.checkpointing": ("bool", "backward repeats forward (activation checkpoints)"),
    "options.offload.in_dram_below": (
        "B", "size below which sub-groups and tensors stay in host DRAM",
    ),
    "options.offload.overlap_events": ("bool", "a block is sent as soon as any block completes"),
    "options.offload.parameter_buffer": (
        "elements", "size of a tensor buffer; 0 for a size that fits every tensor",
    ),
    "options.offload.parameter_buffers": (
        "buffers", "buffers in host memory for portions of the parameters",
    ),
    "options.offload.parameters": ("bool", "parameters are also offloaded (ZeRO-Infinity)"),
    "options.offload.parameters_in_dram": ("parameters", "parameters that stay in host DRAM"),
    "options.offload.pipeline_{read,write}": (
        "bool", "reads or writes overlap the computation on the host",
    ),
    "options.offload.ratio": ("1", "fraction of the sub-groups whose states are on NVMe"),
    "options.offload.remarks": ("", "notes on the origin of these options"),
    "options.offload.threads": (
        "threads", "threads among which a request is divided; null if it is not divided",
    ),
    "configuration.*": ("", "value, unit, source and range of each configuration key"),
    "configuration_sha256": ("", "SHA-256 of the resolved configuration"),
    "assumed.count": ("constants", "number of constants whose source is `assumed`"),
    "assumed.of": ("constants", "number of constants of the configuration"),
    "assumed.headline": (
        "", "the two compared paths, baseline first; null if there is no such pair",
    ),
    "assumed.sample_params": (
        "parameters", "parameters of the sample on which constants are varied; null if no "
        "constants are varied",
    ),
    "assumed.swing[].key": ("", "configuration key that is varied"),
    "assumed.swing[].{low,high}": ("", "end of the constant's range, in the key's unit"),
    "assumed.swing[].{speedup,energy}_factor_at_{low,high}": ("1", "ratio of the paths at that "
                                                                   "end, relative to the typical "
                                                                   "ratio"),
    "assumed.unfelt": ("", "assumed constants that have no effect in this configuration"),
    "uncertainty.{baseline,rival}": ("", "name of the compared path"),
    "uncertainty.draws": ("draws", "number of Monte Carlo draws"),
    "uncertainty.seed": ("", "seed of the draws"),
    "uncertainty.constants_drawn": ("constants", "number of constants that were drawn"),
    "uncertainty.share_a_draw": ("", "groups of keys whose constants are drawn together"),
    "uncertainty.energy_ratio.*": (
        "1", "energy of the baseline divided by that of the rival, by distribution and scope",
    ),
    "uncertainty.host_power_where_the_winner_changes[].keys": ("", "host powers that are varied"),
    "uncertainty.host_power_where_the_winner_changes[].vary": (
        "", "relation of the varied host powers: alone, in proportion (typical ratio) or equal",
    ),
    "uncertainty.host_power_where_the_winner_changes[].watts": (
        "W", "host power at which both paths consume equal energy; null if there is no such power",
    ),
    "uncertainty.host_power_where_the_winner_changes[].takes_less_{below,above}": (
        "", "path with less energy on this side of the break-even",
    ),
    "uncertainty.host_power_where_the_winner_changes[].quantiles_5_50_95": (
        "W", "quantiles of the break-even power over all draws; null if they were not computed",
    ),
    "uncertainty.host_power_where_the_winner_changes[].ranges_watts": (
        "W", "low, typical, high of each varied host power",
    ),
    "uncertainty.tornado[].key": ("", "constant that is varied alone"),
    "uncertainty.tornado[].{low,typical,high}": ("", "value of the constant, in the key's unit"),
    "uncertainty.tornado[].source": ("", "source of the constant"),
    "uncertainty.tornado[].energy_ratio_{drive,drive_and_host,step}": (
        "1", "energy of the baseline divided by that of the rival, at (low, high) end of the range",
    ),
    "uncertainty.tornado[].speedup": (
        "1", "speedup of the update stage, at the (low, high) end of the range",
    ),
    "answer.equal_batches": ("bool", "all strategies train on equally many samples per step"),
    "answer.strategies[].name": ("", "name of the path"),
    "answer.strategies[].reason": ("", "reason why the path cannot run; null if it ran"),
    "answer.strategies[].samples_per_step": ("samples", "training samples per step"),
    "answer.strategies[].step_s": ("s", "time of the whole step"),
    "answer.strategies[].samples_per_s": ("samples/s", "training throughput"),
    "answer.strategies[].{drives,all}_j_per_sample": (
        "J/sample",
        "energy per sample (low, typical, high): of the drives; of drives, host and accelerator",
    ),
    "answer.strategies[].written_bytes_per_sample": ("B/sample", "bytes of all programmed pages"),
    "answer.strategies[].lifetime_years": (
        "years", "lifetime: low, typical, high; null if nothing is written",
    ),
    "answer.strategies[].bound_by": (
        "", "resource class with the highest utilization in the whole step",
    ),
    "answer.strategies[].bound_by_share": ("1", "utilization of that resource class"),
    "answer.strategies[].own_blocks_years": (
        "years", "lifetime of the blocks that only this path uses; null if there are no such blocks"
    ),
    "answer.strategies[].wrong_bits_per_step": (
        "bits", "uncorrected bit errors per step in the reservoir pages that the path used"
    ),
    "answer.strategies[].uncorrectable_pages_per_step": (
        "pages", "pages per step that ECC could not correct"
    ),
    "answer.{fastest,least_energy}.best": ("", "path with the least time or energy per sample"),
    "answer.{fastest,least_energy}.best_right": (
        "", "best path among those without incorrect data; null if all paths used incorrect data"
    ),
    "answer.{fastest,least_energy}.value": (
        "s/sample or J/sample", "time or energy of the best path",
    ),
    "answer.{fastest,least_energy}.equal": ("", "paths within 0.5 % of the best path"),
    "answer.{fastest,least_energy}.others.*": (
        "1", "time or energy of every other path divided by that of the best path",
    ),
    "answer.{fastest,least_energy}.certainty.other": (
        "", "path that is compared with the best path in ratio: the other path of the headline "
        "(time) or the next best path (energy)",
    ),
    "answer.{fastest,least_energy}.certainty.constants": (
        "constants", "time: number of constants varied; energy: number of energy constants drawn",
    ),
    "answer.{fastest,least_energy}.certainty.probability": (
        "1", "energy: fraction of draws in which the best path consumes less than every other path "
        "that is not in equal; time: null",
    ),
    "answer.{fastest,least_energy}.certainty.exceptions": (
        "", "time: constants for which the other path is faster at an end of the range",
    ),
    "answer.{fastest,least_energy}.certainty.decided_by": (
        "", "constant whose range changes the ratio the most, among all varied constants (time) or "
        "among the energy constants (energy)",
    ),
    "answer.{fastest,least_energy}.certainty.ratio": (
        "1", "time or energy of the other path divided by that of the best path, at the low and "
        "the high end of the range of decided_by",
    ),
    "answer.fastest.certainty.with_times": ("", "always null; it exists for energy only"),
    "answer.least_energy.certainty.with_times.{other,constants,probability}": (
        "", "verdict on energy if constants that affect time are also drawn: other path of the "
        "headline, number of constants drawn, fraction of draws in which the best path consumes "
        "less energy; with_times is null if the headline omits the best path, or if no constant "
        "was varied",
    ),
    "answer.least_energy.certainty.with_times.decided_by": (
        "", "constant whose range changes with_times.ratio the most, among all constants drawn",
    ),
    "answer.least_energy.certainty.with_times.ratio": (
        "1", "energy of with_times.other divided by that of the best path, at the low and the high "
        "end of the range of with_times.decided_by; null for an end at which a path cannot run",
    ),
    "headline": ("", "one sentence with the result"),
    "headline_ratios.{update_stage,outside_training,step}": (
        "1", "time of the baseline divided by that of the rival",
    ),
    "headline_ratios.{energy,energy_outside_training}": (
        "1", "energy of the baseline divided by that of the rival",
    ),
    "notes": ("", "notes on the whole comparison"),
    "target.step_s": ("s", "requested step time (--target-step)"),
    "target.paths[].path": ("", "name of the path"),
    "target.paths[].step_s": ("s", "simulated step time"),
    "target.paths[].met": ("bool", "the path meets the target"),
    "target.paths[].fixed_s": ("s", "part of the step that does not depend on the drive"),
    "target.paths[].left_s": ("s", "part of the target step time that remains for the drive"),
    "target.paths[].where": ("", "location at which bytes are counted: link or flash"),
    "target.paths[].{read,written}_bytes": ("B", "bytes of states and gradients per step"),
    "target.paths[].has_bytes_per_s": (
        "B/s", "rate of reads and writes in the simulated run; null if it cannot be computed",
    ),
    "target.paths[].needed_bytes_per_s": (
        "B/s", "rate that meets the target; null if no rate meets it",
    ),
    "interference.source": ("", "block trace that runs concurrently (--foreground)"),
    "interference.requests": ("requests", "number of requests in the block trace"),
    "interference.queue_depth": (
        "requests", "number of outstanding requests; null if the times of the trace are used",
    ),
    "interference.speed": (
        "1", "divisor of the trace's inter-arrival times; null if queue_depth is used",
    ),
    "interference.paths[].name": ("", "name of the path"),
    "interference.paths[].status": ("", "ok, or n/a if the path did not run"),
    "interference.paths[].requests": ("requests", "requests that arrived during the update"),
    "interference.paths[].update_s.{alone,beside}": (
        "s", "time of the update without and with the block trace",
    ),
    "interference.paths[].latency_us.{alone,beside}.{read,write}.{mean,p50,p90,p99,p999,max}": (
        "us", "request latency without and with the update; null for fewer than 100 requests",
    ),
    "paths[].name": ("", "name of the path"),
    "paths[].title": ("", "title of the path"),
    "paths[].status": ("", "ok, or n/a if the path did not run"),
    "paths[].reason": ("", "reason why the path cannot run, if the status is n/a"),
    "paths[].notes": ("", "notes on this path"),
    "paths[].sampled.params": ("parameters", "sizes of the simulated samples of a large model"),
    "paths[].sampled.error": ("1", "relative error of the extrapolation"),
    "paths[].phases_s.*": (
        "s", "time per step of a phase, without the time that overlaps an earlier phase",
    ),
    "paths[].overlaps_s[].{phase,beside}": ("", "later and earlier of two overlapping phases"),
    "paths[].overlaps_s[].seconds": ("s", "time per step in which the two phases overlap"),
    "paths[].utilisation_of_update.*": ("1", "utilization of a resource class in the update stage"),
    "paths[].arithmetic.seconds": ("s", "closed-form lower bound of the update stage"),
    "paths[].arithmetic.bottleneck": ("", "resource that sets the bound"),
    "paths[].arithmetic.text": (
        "", "calculation of the bound; states whether the bound uses the compute model",
    ),
    "paths[].reservoir.lifetime_steps.{levelled,as_laid_out}": (
        "steps", "steps until the first block of the reservoir wears out, with and without wear "
                 "leveling",
    ),
    "paths[].reservoir.planes": ("planes", "number of planes in a die"),
    "paths[].reservoir.planes_in_use": ("planes", "number of planes that a super-page fills"),
    "paths[].reservoir.fullest_die_over_mean": (
        "1", "wear of the fullest die divided by the mean wear of all dies",
    ),
    "paths[].reservoir.change_of_roles.seconds": (
        "s", "time that a change of plane roles adds to a step",
    ),
    "paths[].reservoir.change_of_roles.steps_between": (
        "steps", "steps between two changes of plane roles",
    ),
    "paths[].reservoir.erases_of_a_{die,plane}.{least,mean,most}": (
        "erases", "erases during the run, per die or plane",
    ),
    "paths[].counters.*": ("", "counter of the whole run (emu/engine/core/counters.py)"),
    "paths[].planned.*": ("", "amount that the path's plan requested in the whole run"),
    "paths[].host_dram_bytes_per_step.*": (
        "B", "bytes of each pass over host DRAM (emu/paths/statement.py), read plus written",
    ),
    "paths[].energy_j_per_step.*": ("J/step", "energy of each component: low, typical, high"),
    "paths[].weights.equal_bits_to_reference": (
        "weights", "weights that equal the reference in every bit",
    ),
    "paths[].weights.elements": ("weights", "number of weights that were compared"),
    "paths[].weights.equal_bits_at_host": (
        "weights", "weights at the host that equal the reference; null if this was not checked",
    ),
    "paths[].weights.distance_to_recorded_units": (
        "2**-24 max(|w|, sum of learning rates)",
        "largest difference from the recorded weights; null if they were not compared",
    ),
    "paths[].weights.equal_bits_to_recorded_share": (
        "1", "fraction of weights that equal the recorded weights; null if not compared",
    ),
}  # fmt: skip
"""Table of the keys of result.json: key -> (unit, meaning). The unit "" denotes text or a number
without a unit; the unit "1" denotes a ratio."""

METRICS: dict[str, tuple[str, str]] = {
    "step_s": ("s", "time of a step"),
    "samples_per_step": ("samples", "training samples per step"),
    "samples_per_s": ("samples/s", "training throughput"),
    "update_s": ("s", "time of the update stage"),
    "update_share": ("1", "time of the update stage divided by the time of the step"),
    "update_speedup": (
        "1", "speedup of the update stage over the baseline; null if the stages are not comparable",
    ),
    "overlapped_s": ("s", "time in which a phase overlaps an earlier phase"),
    "update_params_per_s": (
        "param/s", "parameters updated per second; null if there is no update stage",
    ),
    "link_bytes": ("B", "bytes over the drives' links, both directions together"),
    "link_{down,up}_bytes": ("B", "bytes over the links to (down) and from (up) the drives"),
    "channel_bytes": ("B", "bytes over the flash channels, both directions together"),
    "flash_written_bytes": ("B", "bytes of all programmed pages"),
    "drive_dram_bytes": ("B", "bytes through the drives' DRAM, read plus written"),
    "host_dram_bytes": ("B", "bytes through the host's DRAM, read plus written"),
    "tunnel_bytes": ("B", "bytes of messages through the TCP/IP tunnels"),
    "tunnel_commands": ("operations", "NVMe commands and notifications of the tunnels"),
    "host_relay_cpu_s": ("s", "host CPU time spent on relaying tunnel messages"),
    "host_cpu_busy_s": ("s", "time in which the host's CPU updates weights or adds gradients"),
    "page_operations": ("pages", "pages sensed and programmed"),
    "array_operations": ("operations", "reads, programs and erases of the flash arrays"),
    "erased_blocks": ("blocks", "erased blocks"),
    "most_erases_of_a_super_block": (
        "erases", "number of erases of the super-block with the most erases",
    ),
    "waf": (
        "1", "write amplification (bytes programmed / bytes written); null if nothing was written",
    ),
    "steps_to_wear_out": ("steps", "steps until all blocks reach their typical endurance"),
    "state_bytes": ("B", "bytes of the pages that hold weights and states"),
    "state_share_of_capacity": ("1", "state_bytes divided by the nominal capacity of all drives"),
    "state_cells_as_tlc_bytes": ("B", "capacity, as TLC, of the cells that hold the states"),
    "state_in_pslc_as_tlc_bytes": (
        "B", "capacity, as TLC, of the cells that the states would need in pSLC",
    ),
    "bound_by": ("resource", "resource class with the highest utilization in the update stage"),
    "bound_by_share": ("1", "utilization of that resource class"),
    "latency_bound": ("bool", "true if bound_by_share is below 0.5"),
    "rated_write_{low,typical,high}_bytes": ("B", "rated bytes: nominal capacity times cycles"),
    "lifetime_steps_{low,typical,high}": (
        "steps", "steps until the rated bytes are written; null if nothing is written",
    ),
    "lifetime_years_{low,typical,high}": (
        "years", "lifetime in years of training; null if nothing is written",
    ),
    "drives_power_{low,typical,high}_w": ("W", "mean power of all drives over the whole step"),
    "energy_drive_{low,typical,high}_j": (
        "J/step", "energy of the drives, excluding forward and backward",
    ),
    "energy_drive_and_host_{low,typical,high}_j": (
        "J/step", "energy of drives and host, excluding forward and backward",
    ),
    "energy_all_{low,typical,high}_j": (
        "J/step", "energy of drives, host and accelerator in the whole step",
    ),
    "energy_{drive,drive_and_host,all}_{low,typical,high}_j_per_sample": (
        "J/sample", "energy per training sample; scopes as in the keys without per_sample",
    ),
}  # fmt: skip
"""Table of the keys of paths[].metrics in result.json: key -> (unit, meaning). In result.json, each
metric is an object with `value` and `unit`."""


def expand(key: str) -> Iterator[str]:
    """Yield every key that the table key ``key`` denotes: one for each combination of the names in
    braces."""
    parts = re.split(r"\{(.*?)\}", key)
    for names in itertools.product(*(part.split(",") for part in parts[1::2])):
        yield "".join(itertools.chain(*itertools.zip_longest(parts[::2], names, fillvalue="")))


def describe() -> str:
    """Return RESULT_KEYS and METRICS as text: for each key, a line with the key and its unit, and a
    line with its meaning."""
    rows = [
        *RESULT_KEYS.items(),
        *((f"paths[].metrics.{key}", row) for key, row in METRICS.items()),
    ]
    lines = []
    for key, (unit, meaning) in rows:
        lines += [f"{key}{f'  ({unit})' if unit else ''}", f"    {meaning}"]
    return "\n".join(lines) + "\n"
