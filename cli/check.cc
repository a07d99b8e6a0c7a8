// kerf check: whether a deployment, described in JSON, can be served; every reason why not.
#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/options.h"

namespace kerf::cli {

namespace {

// All of standard input, as far as a configuration may be long.
std::string read_stdin() {
  constexpr std::size_t most = 2'000'000;
  std::string text;
  std::array<char, 65'536> part;
  while (text.size() < most) {
    const std::size_t n = std::fread(part.data(), 1, part.size(), stdin);
    text.append(part.data(), n);
    if (n < part.size()) break;
  }
  if (std::ferror(stdin) != 0) throw Error(ErrorKind::usage, "cannot read standard input");
  return text;
}

Json report(const std::vector<deploy::Check>& checks) {
  Json reasons = Json::array();
  Json list = Json::array();
  for (const deploy::Check& check : checks) {
    for (const std::string& reason : check.reasons)
      reasons.push_back(fmt::format("{}: {}", check.name, reason));
    list.push_back({{"name", check.name},
                    {"ok", check.ok()},
                    {"asked", check.asked},
                    {"reasons", check.reasons},
                    {"notes", check.notes}});
  }
  const bool supported = reasons.empty();
  return {{"supported", supported}, {"reasons", std::move(reasons)}, {"checks", std::move(list)}};
}

void print(const std::vector<deploy::Check>& checks, Output& out) {
  std::int64_t failed = 0;
  for (const deploy::Check& check : checks) {
    const char* state = !check.ok() ? "NO" : check.asked ? "ok" : "-";
    out.line("{:<3} {:<16} {}{}", state, check.name, check.question, check.asked ? "" : " (not asked)");
    for (const std::string& reason : check.reasons) out.line("      NO: {}", reason);
    for (const std::string& note : check.notes) out.line("      {}", note);
    failed += check.ok() ? 0 : 1;
  }
  out.line("");
  if (failed == 0)
    out.line("supported");
  else
    out.line("not supported: {} of {} say no; docs/deploying.md tells what to do about each reason", failed,
             counted(std::ssize(checks), "check"));
}

}  // namespace

void add_check(CLI::App& app, Context& context) {
  auto path = std::make_shared<std::string>();
  CLI::App* command =
      add_command(app, context, "check", "Whether a deployment can be served, and every reason why not");
  command->add_option("CONFIG", *path, "Deployment in JSON (docs/deploying.md); - for standard input")
      ->required()
      ->check(not_empty());
  command->callback([path, &context] {
    const bool piped = *path == "-";
    const std::string name = piped ? "standard input" : *path;
    const auto config = piped ? deploy::DeploymentConfig::from_text(read_stdin(), name)
                              : deploy::DeploymentConfig::from_file(*path);
    const std::vector<deploy::Check> checks = deploy::run_checks(config, deploy::this_machine());
    const Json r = report(checks);
    if (context.json)
      context.out.json(r);
    else
      print(checks, context.out);
    if (!r["supported"].get<bool>())
      throw Error(ErrorKind::unsupported,
                  fmt::format("{}: not supported: {}", name, counted(std::ssize(r["reasons"]), "reason")));
  });
}

}  // namespace kerf::cli
