// kerf env: what this program is, what it found on this machine, and why a part is absent.
#include "cli/commands.h"
#include "cli/meeting.h"

namespace kerf::cli {

namespace {

Json report() {
  Json backends = op::backend_names();
  Json groups = Json::array({"local"});
  for (const deploy::Part& part : deploy::optional_parts())
    if (part.what == "group" && !part.absent()) groups.push_back(part.name);
  Json absent = Json::object();
  for (const deploy::Part& part : deploy::optional_parts())
    if (const Verdict why = part.absent()) absent[std::string(part.name)] = why->text;
  Json variables = Json::object();
  for (const EnvVariable& v : env_table) {
    const auto value = env_value(v.name);
    variables[v.name] = {
        {"value", value ? Json(*value) : Json()}, {"meaning", v.meaning}, {"otherwise", v.fallback}};
  }
  Json options = Json::object();
  for (const BuildOption& o : build_options())
    options[std::string(o.name)] = {{"value", o.value}, {"meaning", o.meaning}};
  // A launch that does not fit is shown, not refused: this is where one looks for the reason.
  Json launch = {{"launcher", Json()}};
  const Verdict odd = attempt([&] {
    const Launch l = find_launch(launch_environment());
    if (l.launcher.empty()) return;
    const auto or_null = [](const std::optional<int>& n) { return n ? Json(*n) : Json(); };
    launch = {{"launcher", l.launcher},
              {"rank", l.rank},
              {"size", l.size},
              {"local_rank", or_null(l.local_rank)},
              {"local_size", or_null(l.local_size)},
              {"started", l.started},
              {"variables", l.variables}};
  });
  if (odd) launch["refused"] = odd->text;
  return {{"version", version()},
          {"layout", checkpoint::export_layout},
          {"compiler", compiler()},
          {"build_type", build_type()},
          {"cores", available_cores()},
          {"backends", std::move(backends)},
          {"package", op::backend("cpu").package()},
          {"device", op::backend("cpu").device()},
          {"groups", std::move(groups)},
          {"mpi", comm::mpi_library()},
          {"nccl", absent.contains("nccl") ? std::string() : comm::nccl_library(nccl_file())},
          {"launch", std::move(launch)},
          {"absent", std::move(absent)},
          {"variables", std::move(variables)},
          {"options", std::move(options)}};
}

std::string joined_with(const Json& names, const std::string& between) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : between) + name.get<std::string>();
  return text;
}

std::string joined(const Json& names) { return joined_with(names, ", "); }

std::string launch_text(const Json& l) {
  if (l.contains("refused")) return "refused: " + l["refused"].get<std::string>();
  if (l["launcher"].is_null()) return "no launcher's variables: one process";
  std::string text = fmt::format("{}: rank {} of {}", l["launcher"].get<std::string>(), l["rank"].get<int>(),
                                 l["size"].get<int>());
  if (!l["local_rank"].is_null()) {
    text += fmt::format(", local rank {}", l["local_rank"].get<int>());
    if (!l["local_size"].is_null()) text += fmt::format(" of {}", l["local_size"].get<int>());
  }
  return text + fmt::format(" ({}{})", joined_with(l["variables"], " "),
                            l["started"].get<bool>() ? "" : "; an allocation, which started no ranks");
}

void print(const Json& r, Output& out) {
  out.line("kerf {} ({}, {})", r["version"].get<std::string>(), r["compiler"].get<std::string>(),
           r["build_type"].get<std::string>());
  out.line("layout     {} (converted experts)", r["layout"].get<std::string>());
  out.line("cores      {}", r["cores"].get<int>());
  out.line("backends   {}", joined(r["backends"]));
  out.line("package    {} (kernels of backend cpu)", r["package"].get<std::string>());
  out.line("device     {}", r["device"].get<std::string>());
  out.line("groups     {}", joined(r["groups"]));
  for (const char* library : {"mpi", "nccl"})
    if (const auto text = r[library].get<std::string>(); !text.empty()) out.line("{:<10} {}", library, text);
  out.line("launch     {}", launch_text(r["launch"]));
  for (const auto& [name, why] : r["absent"].items()) out.line("{:<10} {}", name, why.get<std::string>());
  out.line("");
  out.line("environment");
  for (const auto& [name, v] : r["variables"].items()) {
    const std::string value =
        v["value"].is_null() ? "unset: " + v["otherwise"].get<std::string>() : v["value"].get<std::string>();
    out.line("  {:<18} {:<34} {}", name, value, v["meaning"].get<std::string>());
  }
  out.line("");
  out.line("CMake options");
  for (const auto& [name, o] : r["options"].items())
    out.line("  {:<18} {:<34} {}", name, "'" + o["value"].get<std::string>() + "'",
             o["meaning"].get<std::string>());
}

}  // namespace

void add_env(CLI::App& app, Context& context) {
  CLI::App* command =
      add_command(app, context, "env", "Versions, backends, why one is absent, KERF_* variables");
  command->callback([&context] {
    const Json r = report();
    if (context.json)
      context.out.json(r);
    else
      print(r, context.out);
  });
}

}  // namespace kerf::cli
