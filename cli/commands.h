// The commands. Each lives in a file of its own, cli/<name>.cc, and adds itself to the program: its options,
// and a callback that does the work. A command reports a failure by throwing kerf::Error, whose kind is the
// program's exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/context.h"

namespace kerf::cli {

// A subcommand with the options that all commands share (--json, --quiet, --verbose). Its callback is the
// command's to set. `reports`: the command writes a report, so it has --json.
CLI::App* add_command(CLI::App& app, Context& context, const std::string& name,
                      const std::string& description, bool reports = true);

void add_bench(CLI::App& app, Context& context);
void add_check(CLI::App& app, Context& context);
void add_decode(CLI::App& app, Context& context);
void add_env(CLI::App& app, Context& context);
void add_export(CLI::App& app, Context& context);
void add_inspect(CLI::App& app, Context& context);
void add_plan(CLI::App& app, Context& context);
void add_run(CLI::App& app, Context& context);
void add_synth(CLI::App& app, Context& context);
void add_tune(CLI::App& app, Context& context);
void add_verify(CLI::App& app, Context& context);

}  // namespace kerf::cli
