-- Slurm's cli_filter: a job with the comment meshtune:MODEL or meshtune:MODEL@CLUSTER gets the best known plan as
-- MESHTUNE_... variables. Whatever goes wrong, the job goes as it came, with a line on sbatch's standard error.
--
-- It runs in sbatch, as the user who submits, so it can harm that user only; even so, what the user or the service says
-- reaches a shell or an --export list only where a strict pattern holds. Slurm 22.05 tried. See docs/how-to/site-hooks.md.

-- Lines NAME=VALUE: url, and cluster where comments need not name it. Everybody may read it.
local SITE = "/etc/meshtune/site.conf"
-- Of the user: `header = "Authorization: Bearer TOKEN"`, mode 0600; for a service that asks for a token.
local TOKEN = '"$HOME/.config/meshtune/curl.conf"'
local LIMIT_S = 2
local MOST_BYTES = 10000
local MOST_DETAIL = 300
local END = "MESHTUNE_END"

local function say(message)
    slurm.log_info("meshtune: %s", message)
end

local function site()
    local settings = {}
    local file = io.open(SITE)
    if not file then
        return settings
    end
    for line in file:lines() do
        local name, value = line:match("^(%l+)%s*=%s*(%S+)%s*$")
        if name then
            settings[name] = value
        end
    end
    file:close()
    return settings
end

-- The model, the cluster and how many nodes; or nil and why not.
local function question(options, settings)
    local model, rest = options["comment"]:match("^meshtune:([%w_.%-]+)(.*)$")
    if not model or #model > 100 then
        return nil, "the comment must be meshtune:MODEL or meshtune:MODEL@CLUSTER"
    end
    local cluster = rest:match("^@([%w_.%-]+)$") or (rest == "" and settings["cluster"])
    if not cluster or #cluster > 100 or not cluster:match("^[%w_.%-]+$") then
        return nil, "the comment must name the cluster: meshtune:" .. model .. "@CLUSTER"
    end
    local least, most = (options["nodes"] or ""):match("^(%d+)%-?(%d*)$")
    if not least or (most ~= "" and most ~= least) then
        return nil, "the job must name its node count: --nodes"
    end
    return string.format("model=%s&cluster=%s&nodes=%s", model, cluster, least)
end

-- The service's answer as NAME=VALUE texts; or nil and why not.
local function ask(url, asked)
    if not url or not url:match("^https?://[%w_.:/%-]+$") then
        return nil, SITE .. " names no url"
    end
    -- The token stays out of the command line, where everybody sees it. A time-out in mid-answer leaves out the end.
    local command = string.format(
        'token=%s; [ "$(stat -c %%a "$token" 2>/dev/null)" = 600 ] || token=/dev/null; '
            .. "curl -q -s -w '\\n%%{http_code}' --noproxy '*' -m %d --max-filesize %d --config \"$token\" "
            .. "'%s/v1/recommendations?%s&format=env' 2>/dev/null && echo %s",
        TOKEN, LIMIT_S, MOST_BYTES, url, asked, END
    )
    local pipe = io.popen(command)
    local text = pipe:read(2 * MOST_BYTES) or ""
    pipe:close()
    local body, status = text:match("^(.*)\n(%d%d%d)" .. END .. "\n$")
    if not body then
        return nil, url .. " gave no answer within " .. LIMIT_S .. " s"
    end
    if status ~= "200" then
        -- Such as "no campaign and no preset has a model 'gpt-mikro'; did you mean 'gpt-micro'?"
        local detail = body:match('"detail":%s*"([^"]*)') or ""
        return nil, url .. " answered " .. status .. ": " .. detail:gsub("[^%w%p ]", "?"):sub(1, MOST_DETAIL)
    end
    local variables = {}
    if not body:match("\n$") then
        body = "cut off\n"
    end
    for line in body:gmatch("([^\n]*)\n") do
        if not line:match("^MESHTUNE_[%u_]+=[%w_.:/%-]+$") then
            return nil, url .. " gave an answer that is not lines of MESHTUNE_NAME=value"
        end
        table.insert(variables, line)
    end
    return variables
end

-- The NAME=VALUE texts for this job; or nil and why not.
local function recommendation(options)
    local export = options["export"] or ""
    if export == "NONE" or export == "NIL" then
        return nil, "--export=" .. export .. " lets no variables into the job"
    end
    local settings = site()
    local asked, trouble = question(options, settings)
    if not asked then
        return nil, trouble
    end
    return ask(settings["url"], asked)
end

local function recommend(options)
    local variables, trouble = recommendation(options)
    if not variables then
        error(trouble, 0)
    end
    local export = options["export"] or ""
    options["export"] = (export == "" and "ALL" or export) .. "," .. table.concat(variables, ",")
    say(table.concat(variables, " "))
end

function slurm_cli_setup_defaults(options, early)
    return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
    if options["type"] == "sbatch" and (options["comment"] or ""):match("^meshtune:") then
        local fine, trouble = pcall(recommend, options)
        if not fine then
            say("no recommendation, the script goes with its own defaults: " .. tostring(trouble))
        end
    end
    return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
    return slurm.SUCCESS
end
