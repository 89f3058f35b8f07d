// A protected MCP server beside the issuer that oidc-provider makes: node issuer.mjs PORT
// The person behind the browser is signed in and agrees to everything. POST /forget ends all access tokens, or with
// ?clients all clients too, as issuers do that clean up.
import { createServer } from "node:http";
import { Provider } from "oidc-provider";

const port = Number(process.argv[2]);
const issuer = `http://127.0.0.1:${port}`;
const resource = `${issuer}/mcp`;
const kept = new Map();

// Everything in memory, so that the test can make the issuer forget.
class Adapter {
  constructor(name) { this.name = name; }
  key(id) { return `${this.name}:${id}`; }
  async upsert(id, payload) { kept.set(this.key(id), payload); }
  async find(id) { return kept.get(this.key(id)); }
  async findByUid(uid) { return this.first((each) => each.uid === uid); }
  async findByUserCode(code) { return this.first((each) => each.userCode === code); }
  first(fits) {
    for (const [key, value] of kept) if (key.startsWith(`${this.name}:`) && fits(value)) return value;
  }
  async destroy(id) { kept.delete(this.key(id)); }
  async consume(id) { kept.get(this.key(id)).consumed = Math.floor(Date.now() / 1000); }
  async revokeByGrantId(grant) {
    for (const [key, value] of kept) if (value.grantId === grant) kept.delete(key);
  }
}

const provider = new Provider(issuer, {
  adapter: Adapter,
  cookies: { keys: ["a key of a test"] },
  findAccount: async (ctx, id) => ({ accountId: id, claims: async () => ({ sub: id }) }),
  scopes: ["openid", "offline_access", "mcp:read"],
  clientDefaults: { grant_types: ["authorization_code", "refresh_token"] },
  issueRefreshToken: async () => true,
  rotateRefreshToken: true,
  ttl: { AccessToken: 600, AuthorizationCode: 60, Grant: 3600, IdToken: 600, Interaction: 60, RefreshToken: 3600, Session: 600 },
  interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
  features: {
    devInteractions: { enabled: false },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: async () => ({ scope: "mcp:read", audience: resource, accessTokenFormat: "opaque" }),
      useGrantedResource: async () => true,
    },
  },
});

async function agree(request, response) {
  const { prompt, params, session, grantId } = await provider.interactionDetails(request, response);
  if (prompt.name === "login") {
    return provider.interactionFinished(request, response, { login: { accountId: "somebody" } });
  }
  const grant = grantId
    ? await provider.Grant.find(grantId)
    : new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  if (prompt.details.missingOIDCScope) grant.addOIDCScope(prompt.details.missingOIDCScope.join(" "));
  for (const [indicator, scopes] of Object.entries(prompt.details.missingResourceScopes ?? {})) {
    grant.addResourceScope(indicator, scopes.join(" "));
  }
  return provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } });
}

function say(response, status, body, headers = {}) {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(body === undefined ? undefined : JSON.stringify(body));
}

async function serveMcp(request, response) {
  let text = "";
  for await (const chunk of request) text += chunk;
  const shown = (request.headers.authorization ?? "").replace(/^Bearer /, "");
  const token = shown && (await provider.AccessToken.find(shown));
  if (!token || token.aud !== resource) {
    const metadata = `${issuer}/.well-known/oauth-protected-resource/mcp`;
    return say(response, 401, {}, { "www-authenticate": `Bearer resource_metadata="${metadata}", scope="mcp:read"` });
  }
  const { id, method, params } = JSON.parse(text);
  const results = {
    initialize: { protocolVersion: "2025-11-25", capabilities: { tools: {} }, serverInfo: { name: "peer", version: "1" } },
    "tools/list": { tools: [{ name: "who", inputSchema: { type: "object" } }] },
    "tools/call": { content: [{ type: "text", text: `scope ${token.scope}` }] },
  };
  if (id === undefined) return say(response, 202);
  if (!(method in results)) return say(response, 400, { jsonrpc: "2.0", id, error: { code: -32601, message: method } });
  return say(response, 200, { jsonrpc: "2.0", id, result: results[method] });
}

createServer(async (request, response) => {
  const { pathname, searchParams } = new URL(request.url, issuer);
  if (pathname === "/mcp") return request.method === "POST" ? serveMcp(request, response) : say(response, 405);
  if (pathname === "/.well-known/oauth-protected-resource/mcp") {
    return say(response, 200, { resource, authorization_servers: [`${issuer}/`], scopes_supported: ["mcp:read"] });
  }
  if (pathname.startsWith("/interaction/")) return agree(request, response);
  if (pathname === "/forget") {
    for (const key of [...kept.keys()]) {
      if (key.startsWith("AccessToken:") || (searchParams.has("clients") && /^(Client|RefreshToken):/.test(key))) kept.delete(key);
    }
    return say(response, 200, {});
  }
  return provider.callback()(request, response);
}).listen(port, "127.0.0.1");
