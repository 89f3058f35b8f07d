"""The formats of secrets documented by vendors, and the words that precede a secret.

Each row has a name, strings of which at least one must occur (searched for first, which is fast), and a regular expression.
If the expression has a group, only that is masked. The time is linear in the length of the text: repetitions before the
secret are bounded, and where a match could begin at every character, each beginning ends the previous one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...ground.frozen import frozen
from ...ground.patterns import regex

# A search holds the interpreter's lock until it finds something: a long text is searched in segments, each with a margin for
# secrets that begin in it. Only a secret that is longer than the margin, and not recognized by its beginning, is missed.
_SEGMENT_CHARS, _MARGIN_CHARS = 128 * 1024, 32 * 1024


def find_in_segments(
    pattern: re.Pattern[str], text: str, segment: int = _SEGMENT_CHARS, margin: int = _MARGIN_CHARS
) -> Iterator[re.Match[str]]:
    """Yield the matches that `finditer` would find, except for some longer than `margin`. The pattern must never match an
    empty text.
    """
    at, reach = 0, margin
    while at < len(text):
        edge = min(at + segment, len(text))
        end = min(edge + reach, len(text))
        reach = margin
        for match in pattern.finditer(text, at, end):
            if match.start() >= edge:
                break
            if match.end() == end < len(text):  # it may continue beyond the margin
                edge, reach = match.start(), 4 * (end - match.start())
                break
            yield match
            at = match.end()
        at = max(at, edge)


@frozen
class SecretShape:
    """A format of text that is a secret wherever it occurs."""

    name: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the positions of secrets of this format in a text."""
        group = self.pattern.groups
        matches = find_in_segments(self.pattern, text)
        return (match.span(group) for match in matches if not match[group].startswith("[masked"))


class NamedSecretShape(SecretShape):
    """A format of values that are secrets only because of the name before them; numbers, types, names and prose are not."""

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the positions of the values of such names in a text."""
        for match in find_in_segments(self.pattern, text):
            groups = match.groupdict()
            kind = next(kind for kind in ("quoted", "set", "spaced", "said") if groups.get(kind) is not None)
            name, value = groups["name"], groups[kind]
            # Text that turns out to be code or prose is consumed, too, so that nothing is scanned twice.
            is_whole = {
                "quoted": groups.get("close"),
                "set": not groups.get("call"),
                "spaced": groups.get("line") is not None and _NUMBERED_NAME.fullmatch(value) is None,
                "said": groups.get("end") is not None,
            }
            if not is_whole[kind] or value.startswith("[masked") or _PLAIN_VALUE.fullmatch(value):
                continue
            if _ENDS_IN_WORD.search(name) is None:
                is_secret = kind == "set" and _CAPITALS.fullmatch(name) is not None
            else:
                is_secret = kind == "quoted" or _HAS_SIGN.search(value) is not None or name.isupper()
            if is_secret:
                yield match.span(kind)


# Values after `password=` or `"token":` that are not secrets: a number, a word of a schema, another name (of a
# variable, attribute, file or address), a placeholder.
_PLAIN_VALUE = regex(
    r"[\d.,:+-]*|\$.*|<.*|\{.*|%[\w(].*|\.{2,}.*|[*xX.•]+|(?:https?|file|wss?)://.*|[./~].*|(?-i:[A-Z][A-Z0-9]*(?:[_-][A-Z0-9]+)+|[a-z]+(?:[_-][a-z]+)+)"
    r"|(?:none|null|nil|true|false|string|str|bytes|text|number|optional|required|undefined|redacted|hidden|changeme|example"
    r"|placeholder|secret|password|passwd|token|bearer|basic|api[_-]?key|your[_-].*|my[_-](?:token|key|secret|password)|todo)",
    re.IGNORECASE,
)

# The name of a variable or a kind: in code, it is assigned just like a value.
_NUMBERED_NAME = regex(r"[A-Za-z_.]+\d{0,3}")
# A word for a secret, at the end of a name. `PASSWORD_OLD` and `SECRET_KEY_BASE` have a short suffix; `token_count` and
# `PASSWORD_FILE` name something else.
_WORD = (
    r"(?:pass(?:word|wd|phrase)|(?<![a-zA-Z])pwd|(?<=[._-])(?:pass|pw)|smtp_?pass|(?<![a-z])psk|sonar[._-]login|secret(?:[_-]?(?:access|shared))?(?:[_-]?key(?:[_-]base)?)?"
    r"|(?:api|access|account|auth|private|signing|encryption|master|shared|subscription|service|storage|license|application"
    r"|client|functions)[_-]?key(?:-data)?|(?:access|auth|api|bearer|refresh|session|security|id|bot|csrf|xsrf|deploy|personal|private|job|identity)[_-]?token"
    r"|(?<![a-z])token|credentials?|authorization|connection[_-]?string|x-(?:amz|goog)-signature)"
    r"(?:[_-]?(?:base64|b64|value|new|old|prod|production|staging|dev|test|live|\d{1,3}))?"
)
_ENDS_IN_WORD = regex(rf"(?i){_WORD}\Z")
_CAPITALS = regex(
    r"(?:[A-Z0-9]{1,30}_){0,6}(?:PASS|PW|KEY|AUTH|PAT|JWT|DSN|SALT|BEARER)(?:_(?:BASE64|B64|OLD|NEW|PROD|STAGING|DEV|TEST|\d{1,3}))?"
)
# Features that no name of a variable, attribute or type has: an unquoted value with them looks like a secret.
_HAS_SIGN = regex(r"[\d!@#%^*+~]")
_TEXT_OF_VALUE = r"[^\s\"'`\\<>(){}\[\],;&|]"

_GITLAB = "|".join(("pat", "dt", "rt", "rtr", "cbt", "ptt", "ft", "imt", "agent", "soat", "oas", "ffct", "wt"))

_ROWS: tuple[tuple[str, str, str], ...] = (
    (
        "private key",
        "PRIVATE KEY",
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    ),
    ("private key", "Private-Lines:", r"\bPrivate-Lines: \d+\s+([A-Za-z0-9+/=\s]{40,}?)(?=\s*\n[A-Z]|\Z)"),
    ("age key", "AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[A-Z0-9]{50,}"),
    ("Anthropic key", "sk-ant-", r"\bsk-ant-[A-Za-z0-9_-]{16,}"),
    ("OpenAI key", "sk-", r"\bsk-(?=[A-Za-z_-]{0,80}\d)(?:proj-|svcacct-|admin-|or-v1-|lf-)?[A-Za-z0-9_-]{20,}"),
    ("GitHub token", "ghp_|gho_|ghu_|ghs_|ghr_", r"\bgh[pousr]_[A-Za-z0-9]{30,}"),
    ("GitHub token", "github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{40,}"),
    ("GitLab token", "gl", rf"\bgl(?:{_GITLAB})-[A-Za-z0-9_.=-]{{18,}}"),
    ("GitLab token", "GR1348941", r"\bGR1348941[A-Za-z0-9_-]{20,}"),
    ("AWS key id", "AKIA|ASIA|ABIA|ACCA", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"),
    ("AWS secret", "aws", r"(?i)aws_?secret_?access_?key[\"']?\s*[:=]\s*[\"']?([A-Za-z0-9/+=]{40})\b"),
    ("AWS session token", "FwoG|IQoJ|FQoG", r"\b(?:FwoGZXIvYXdz|IQoJb3JpZ2lu|FQoGZXIvYXdz)[A-Za-z0-9+/=%_-]{40,}"),
    ("AWS Bedrock key", "ABSK", r"\bABSK[A-Za-z0-9+/]{60,}={0,2}"),
    ("Google key", "AIza", r"\bAIza[A-Za-z0-9_-]{35}"),
    ("Google token", "ya29.", r"\bya29\.[A-Za-z0-9_-]{20,}"),
    ("Google client secret", "GOCSPX-", r"\bGOCSPX-[A-Za-z0-9_-]{24,}"),
    ("Google refresh token", "1//0", r"(?<![\w/])1//0[A-Za-z0-9_-]{35,}"),
    ("Azure key", "Key=", r"(?:Account|SharedAccess|Shared)Key=([A-Za-z0-9+/]{40,}={0,2})"),
    ("Azure signature", "sig=", r"[?&;]sig=([A-Za-z0-9%+/_-]{30,}={0,2})"),
    ("Azure client secret", "Q~", r"(?<![\w~.-])[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{31,34}(?![\w~.-])"),
    ("Azure DevOps token", "AZDO", r"\b[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}\b"),
    ("Slack token", "xox", r"\bxox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,}"),
    ("Slack token", "xapp-", r"\bxapp-\d-[A-Za-z0-9-]{20,}"),
    ("Slack webhook", "hooks.slack.com", r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9/]{20,})"),
    ("Teams webhook", "webhook.office.com", r"webhook\.office\.com/webhookb2/([A-Za-z0-9@/-]{36,})"),
    ("Discord webhook", "/api/webhooks/", r"discord(?:app)?\.com/api/webhooks/\d{10,}/([A-Za-z0-9_-]{40,})"),
    ("Discord token", ".", r"(?<![\w.-])[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}(?![\w.-])"),
    ("Telegram token", ":AA", r"(?:(?<![\w:])|(?<=/bot))\d{8,10}:AA[A-Za-z0-9_-]{32,34}(?![\w-])"),
    ("Stripe key", "k_", r"\b[rs]k_(?:live|test|prod)_[A-Za-z0-9]{10,}"),
    ("Stripe secret", "whsec_", r"\bwhsec_[A-Za-z0-9+/=]{24,}"),
    ("Square token", "sq0", r"\bsq0(?:atp|csp|idp)-[A-Za-z0-9_-]{22,}"),
    ("PayPal token", "access_token$", r"access_token\$(?:production|sandbox)\$[0-9a-z]{10,}\$[0-9a-f]{32}"),
    (
        "Plaid token",
        "access-",
        r"\baccess-(?:sandbox|development|production)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    ),
    ("Shopify token", "shp", r"\bshp(?:at|ca|pa|ss|ua)_[A-Fa-f0-9]{32}"),
    ("Twilio key", "SK", r"\bSK[0-9a-f]{32}\b"),
    ("SendGrid key", "SG.", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("Mailgun key", "key-", r"\bkey-[0-9a-f]{32}\b"),
    ("Mailchimp key", "-us", r"\b[0-9a-f]{32}-us\d{1,2}\b"),
    ("Brevo key", "xkeysib-", r"\bxkeysib-[0-9a-f]{64}-[A-Za-z0-9]{16}"),
    ("Hugging Face token", "hf_", r"\bhf_[A-Za-z0-9]{30,}"),
    ("Replicate token", "r8_", r"\br8_[A-Za-z0-9]{37,40}\b"),
    ("Groq key", "gsk_", r"\bgsk_[A-Za-z0-9]{40,}"),
    ("xAI key", "xai-", r"\bxai-[A-Za-z0-9]{60,}"),
    ("Perplexity key", "pplx-", r"\bpplx-[A-Za-z0-9]{40,}"),
    ("LangSmith key", "lsv2_", r"\blsv2_(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}"),
    ("Tavily key", "tvly-", r"\btvly-[A-Za-z0-9_-]{16,}"),
    ("npm token", "npm_", r"\bnpm_[A-Za-z0-9]{36}\b"),
    ("PyPI token", "pypi-", r"\bpypi-[A-Za-z0-9_-]{50,}"),
    ("RubyGems key", "rubygems_", r"\brubygems_[a-f0-9]{48}"),
    ("NuGet key", "oy2", r"\boy2[a-z0-9]{43}\b"),
    ("Docker token", "dckr_", r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}"),
    ("JFrog key", "AKCp", r"\bAKCp[A-Za-z0-9]{60,}"),
    ("JFrog token", "cmVmdGtu", r"\bcmVmdGtu[A-Za-z0-9]{50,}"),
    ("Vault token", "hv", r"\bhv[sbr]\.[A-Za-z0-9_-]{24,}"),
    ("Terraform token", ".atlasv1.", r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}"),
    ("Doppler token", "dp.", r"\bdp\.(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,44}"),
    ("Pulumi token", "pul-", r"\bpul-[a-f0-9]{40}\b"),
    ("DigitalOcean token", "_v1_", r"\bdo[opr]_v1_[a-f0-9]{64}"),
    ("Heroku key", "HRKU-", r"\bHRKU-[A-Za-z0-9_-]{36,}"),
    ("Fly token", "fm", r"\b(?:FlyV1 )?fm[12][ar]?_[A-Za-z0-9+/=,_-]{40,}"),
    ("Netlify token", "nfp_|nfc_|nfo_|nfu_", r"\bnf[pcou]_[A-Za-z0-9]{36}\b"),
    ("Supabase key", "sb", r"\bsb(?:p_[a-f0-9]{40}|_secret_[A-Za-z0-9_-]{20,})"),
    ("PlanetScale key", "pscale_", r"\bpscale_(?:tkn|oauth|pw)_[A-Za-z0-9_.=-]{32,}"),
    ("Databricks token", "dapi", r"\bdapi[a-f0-9]{32}(?:-\d)?\b"),
    ("Grafana token", "glsa_|glc_", r"\b(?:glsa_[A-Za-z0-9]{32}_[a-fA-F0-9]{8}|glc_[A-Za-z0-9+/]{32,}={0,2})"),
    ("New Relic key", "NRAK-", r"\bNRAK-[A-Z0-9]{27}\b"),
    ("Dynatrace token", "dt0", r"\bdt0[a-z]\d\d\.[A-Z0-9]{24}\.[A-Z0-9]{64}"),
    ("Sentry token", "sntry", r"\bsntry[su]_[A-Za-z0-9+/=_-]{40,}"),
    ("PostHog key", "phx_", r"\bphx_[A-Za-z0-9]{40,}"),
    ("Postman key", "PMAK-", r"\bPMAK-[a-f0-9]{24}-[a-f0-9]{34}"),
    ("Notion token", "ntn_", r"\bntn_[A-Za-z0-9]{40,}"),
    ("Linear key", "lin_", r"\blin_(?:api|oauth)_[A-Za-z0-9]{32,}"),
    ("Figma token", "figd_", r"\bfig[dour]_[A-Za-z0-9_-]{36,}"),
    ("Airtable token", "pat", r"\bpat[A-Za-z0-9]{14}\.[a-f0-9]{64}"),
    ("Atlassian token", "AT", r"\b(?:AT[AC]TT3[A-Za-z0-9_=-]{60,}|ATBB[A-Za-z0-9]{32})"),
    ("CircleCI token", "CCI", r"\bCCIP(?:AT|RJ)_[A-Za-z0-9]{20,}_[a-f0-9]{40}"),
    ("Buildkite token", "bk", r"\bbk[a-z]{1,2}_[a-f0-9]{40}\b"),
    ("1Password token", "ops_eyJ", r"\bops_eyJ[A-Za-z0-9+/_-]{100,}={0,2}"),
    ("Tailscale key", "tskey-", r"\btskey-[a-z]+-[A-Za-z0-9]+-?[A-Za-z0-9]{16,}"),
    ("Alibaba key id", "LTAI", r"\bLTAI[A-Za-z0-9]{12,20}\b"),
    ("Tencent key id", "AKID", r"\bAKID[A-Za-z0-9]{32}\b"),
    ("JSON web token", "eyJ", r"\beyJ(?:(?!-eyJ)[A-Za-z0-9_-]){8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    ("bearer token", "earer ", r"\b[Bb]earer ([A-Za-z0-9._~+/=-]{16,})"),
    ("SonarQube token", "sq", r"\bsq[apu]_[a-f0-9]{40}\b"),
    ("Render key", "rnd_", r"\brnd_[A-Za-z0-9]{28,}"),
    ("NVIDIA key", "nvapi-", r"\bnvapi-[A-Za-z0-9_-]{60,}"),
    ("Cerebras key", "csk-", r"\bcsk-[a-zA-Z0-9]{40,}"),
    ("Fireworks key", "fw_", r"\bfw_(?=[A-Za-z]{0,22}\d)[A-Za-z0-9]{22,24}\b"),
    ("Chutes key", "cpk_", r"\bcpk_[a-f0-9]{32}\.[a-f0-9]{32}\.[A-Za-z0-9]{32}"),
    ("Vercel token", "vercel_", r"\bvercel_blob_rw_[A-Za-z0-9]{16}_[A-Za-z0-9]{30,}"),
    ("Typeform token", "tfp_", r"\btfp_[A-Za-z0-9_.=-]{59}"),
    ("E2B key", "e2b_", r"\be2b_[a-f0-9]{40}\b"),
    ("Jina key", "jina_", r"\bjina_[A-Za-z0-9_-]{50,}"),
    ("Firecrawl key", "fc-", r"\bfc-[a-f0-9]{32}\b"),
    ("Apify token", "apify_api_", r"\bapify_api_[A-Za-z0-9]{30,}"),
    ("Notion secret", "secret_", r"\bsecret_[A-Za-z0-9]{43}\b"),
    ("Facebook token", "EAAC", r"\bEAACEdEose0cBA[A-Za-z0-9]{20,}"),
    ("Ory token", "ory_", r"\bory_[ar]t_[A-Za-z0-9_-]{40,}\.[A-Za-z0-9_-]{40,}"),
    ("Grafana key", "eyJrIjoi", r"\beyJrIjoi[A-Za-z0-9]{60,}={0,2}"),
    ("k3s token", "::server:", r"\bK10[a-f0-9]{64}::server:[A-Za-z0-9]{16,}"),
    ("Mapbox token", "sk.eyJ", r"\bsk\.eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}"),
    ("HubSpot token", "pat-", r"\bpat-(?:na|eu)\d-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    ("Prefect key", "pn", r"\bpn[ub]_[A-Za-z0-9]{36}\b"),
    ("Shippo token", "shippo_", r"\bshippo_(?:live|test)_[a-f0-9]{40}"),
    ("Duffel token", "duffel_", r"\bduffel_(?:test|live)_[A-Za-z0-9_=-]{43}"),
    ("Flutterwave key", "FLWSECK", r"\bFLWSECK(?:_TEST)?-[A-Za-z0-9]{12,}"),
    ("Infracost key", "ico-", r"\bico-[A-Za-z0-9]{32}\b"),
    ("OpenShift token", "sha256~", r"\bsha256~[A-Za-z0-9_-]{43}"),
    ("Octopus key", "API-", r"\bAPI-[A-Z0-9]{26}\b"),
    ("Dropbox token", "sl.", r"\bsl\.(?:u\.)?[A-Za-z0-9_-]{100,}"),
    ("Harness token", "at.", r"\b[ps]at\.[A-Za-z0-9_-]{22}\.[0-9a-f]{24}\.[A-Za-z0-9]{20}"),
    (
        "password hash",
        "$1$|$5$|$6$|$y$|$apr1$|$2a$|$2b$|$2y$|$argon2",
        r"\$(?:1|5|6|y|apr1|2[aby]|argon2(?:id|i|d))\$[A-Za-z0-9./=,$+-]{20,}",
    ),
    ("password hash", "SHA}|MD5}|CRYPT}", r"\{(?:S?SHA|S?MD5|CRYPT)\d{0,3}\}([A-Za-z0-9+/$.]{20,}={0,2})"),
    (
        "registry password",
        "auth",
        r"(?:\b_auth[ \t]{0,4}=[ \t]{0,4}|\"auth\"\s{0,4}:\s{0,4}\")([A-Za-z0-9+/]{12,}={0,2})",
    ),
    ("password in an address", "jdbc:oracle:", r"jdbc:oracle:thin:[^\s/@:]{1,60}/([^\s/@]{3,})@"),
    ("password in an address", "=", r"(?i)(?<=[?&;])(?:password|passwd|pwd|pass)=([^\s&;\"'<>${}]{4,})"),
    # Programs that take a password in an option without a name for it.
    (
        "password option",
        "curl",
        r"\bcurl\b[^\n|;&]{0,300}?\s(?:-u|--user|-U|--proxy-user)[ =]?[\"']?[^\s:\"']{1,80}:([^\s\"'$]{4,})",
    ),
    ("password option", "sshpass", r"\bsshpass\s+-p\s?[\"']?([^\s\"'$]{4,})"),
    ("password option", "login", r"\blogin\b[^\n|;&]{0,200}?\s-p[ =][\"']?([^\s\"'$<-][^\s\"']{5,})"),
    (
        "password option",
        "mysql|mariadb",
        r"\b(?:mysql|mysqldump|mysqladmin|mariadb)\b[^\n|;&]{0,200}?\s-p([^\s\"'$]{4,})",
    ),
    ("password option", "redis-cli", r"\bredis-cli\b[^\n|;&]{0,200}?\s-a\s+[\"']?([^\s\"'$]{4,})"),
    ("password option", "htpasswd", r"\bhtpasswd\s+-[A-Za-z]{0,6}b[A-Za-z]{0,6}\s+\S{1,200}\s+\S{1,80}\s+([^\s$]{4,})"),
    ("password option", "pass:", r"(?<!\S)-pass(?:in|out)?\s+[\"']?pass:([^\s\"'$]{4,})"),
    (
        "Redis password",
        "requirepass |masterauth ",
        r"(?m)^[ \t]{0,8}(?:requirepass|masterauth)[ \t]+[\"']?([^\s\"']{6,})[\"']?$",
    ),
    ("Postgres password", ":", r"(?m)^[\w.*-]{1,80}:(?:\d{4,5}|\*):[^:\s]{1,60}:[^:\s]{1,60}:([^\s:]{4,})$"),
    ("password in an address", "://", r"://[^\s/:@]*:([^\s/@]{3,})@"),
)
_BASIC = (
    r"(?i)\bauthorization[\"']?\s{0,4}[:=,]\s{0,4}[\"']?(?:basic|token|digest|negotiate|apikey|splunk|key)\s+"
    r"([A-Za-z0-9_.~+/=:-]{8,})"
)
_COOKIE = (
    r"(?i)\b(?:set-)?cookie[\"']?\s{0,4}:\s{0,4}[\"']?(?:[\w.-]{1,60}=[^;\s\"']{0,300}; ?){0,30}"
    r"[\w.-]{0,40}(?:sess|sid|auth|token)[\w.-]{0,40}=([^;\s\"']{8,})"
)
_NETRC = r"(?m)\b(?:machine\s+\S{1,200}|default)\s+login\s+\S{1,200}\s+password\s+(\S{4,})"
_FLAGS = (
    r"(?<!\S)--?(?P<name>[A-Za-z][\w-]{0,60}+)[= ]"
    rf"(?:[\"'](?P<quoted>{_TEXT_OF_VALUE}{{6,}}+)(?>(?P<close>[\"'])?)|(?P<set>{_TEXT_OF_VALUE}{{6,}}+))"
)
# Linear time: a name is matched at most once from each of its starts, and its length is bounded.
_NAMED_VALUE = (
    r"(?<![\w.])(?P<name>[A-Za-z_][\w.-]{0,100}+)(?:"
    rf"\\?[\"']?\s{{0,4}}[:=]>?\s{{0,4}}\\?[\"'](?P<quoted>{_TEXT_OF_VALUE}{{6,}}+)(?>(?P<close>\\?[\"'])?)"
    rf"|=(?P<set>{_TEXT_OF_VALUE}{{6,}}+)(?P<call>[(\[{{]?)"
    rf"|[ \t]{{1,4}}=[ \t]{{1,4}}(?P<spaced>{_TEXT_OF_VALUE}{{8,}}+)(?>(?P<line>[ \t]{{0,200}}(?:\n|\Z))?)"
    r"|:\s{0,2}(?!//)(?P<said>[^\s\"'`]{6,}+)(?>(?P<end>[ \t]{0,200}(?:[\n\"']|\Z))?))"
)
# Elements and attributes of XML: `<password>x</password>`, `<add key="ApiKey" value="x"/>`.
_ELEMENT = r"<(?P<name>[A-Za-z][\w.:-]{0,60})>(?P<quoted>[^<>\s\"']{6,200})(?>(?P<close></)?)"
_ATTRIBUTE = (
    r"\b(?:key|name)=\"(?P<name>[\w.:-]{1,60})\"(?:\s{1,4}value=\"|\s{0,4}>)"
    r"(?P<quoted>[^<>\s\"']{6,200})(?>(?P<close>\"|<)?)"
)

SHAPES: tuple[SecretShape, ...] = (
    *(SecretShape(name, tuple(hints.split("|")), regex(text)) for name, hints, text in _ROWS),
    SecretShape("authorization", ("uthorization", "UTHORIZATION"), regex(_BASIC)),
    SecretShape("cookie", ("ookie", "OOKIE"), regex(_COOKIE)),
    SecretShape("netrc password", ("machine ", "default "), regex(_NETRC)),
    NamedSecretShape("secret option", ("--",), regex(_FLAGS)),
    NamedSecretShape("named secret", ("</",), regex(_ELEMENT)),
    NamedSecretShape("named secret", ('key="', 'name="'), regex(_ATTRIBUTE)),
    NamedSecretShape("named secret", ("=", ":"), regex(_NAMED_VALUE)),
)
