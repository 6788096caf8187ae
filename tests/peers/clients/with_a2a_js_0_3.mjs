// Client of a2a-js 0.3. Arguments: two addresses of the gateway, one for webhooks, and a binding.
import { randomUUID } from 'node:crypto';
import { ClientFactory, ClientFactoryOptions, JsonRpcTransportFactory, RestTransportFactory } from 'a2a-js-0.3/client';
import { run } from './steps.mjs';

const TOKEN = 'chosen-by-the-client';
const stateOf = (status) => status.state.toUpperCase().replaceAll('-', '_');
const textOf = (parts) => parts.map((part) => (part.kind === 'text' ? part.text : '')).join('');
const ofStatus = (status) => textOf(status.message?.parts ?? []);
const ofTask = (task) => ({
  id: task.id,
  contextId: task.contextId,
  state: stateOf(task.status),
  text: (task.artifacts ?? []).map((artifact) => textOf(artifact.parts)).join('') + ofStatus(task.status),
});
const ofEvent = (event) => {
  if (event.kind === 'task') return ofTask(event);
  if (event.kind === 'artifact-update') return { state: '', text: textOf(event.artifact.parts) };
  return { state: stateOf(event.status), text: ofStatus(event.status) };
};
const params = (text, { answers, webhook, wait = true } = {}) => ({
  message: {
    kind: 'message',
    messageId: randomUUID(),
    role: 'user',
    parts: [{ kind: 'text', text }],
    ...(answers && { taskId: answers.id, contextId: answers.contextId }),
  },
  configuration: { blocking: wait, ...(webhook && { pushNotificationConfig: { url: webhook, token: TOKEN } }) },
});

await run(async (address, binding) => {
  const factory = new ClientFactory(
    ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
      transports: [binding === 'JSONRPC' ? new JsonRpcTransportFactory() : new RestTransportFactory()],
    }),
  );
  const client = await factory.createFromUrl(address);
  return {
    card: async () => {
      const { name, capabilities } = await client.getAgentCard();
      return [name, capabilities.streaming, capabilities.pushNotifications];
    },
    send: async (text, options) => ofTask(await client.sendMessage(params(text, options))),
    stream: async function* (text) {
      for await (const event of client.sendMessageStream(params(text))) yield ofEvent(event);
    },
    get: async (id) => ofTask(await client.getTask({ id })),
    cancel: async (id) => ofTask(await client.cancelTask({ id })),
    subscribe: async function* (id) {
      for await (const event of client.resubscribeTask({ id })) yield ofEvent(event);
    },
    setWebhook: (taskId, url) =>
      client.setTaskPushNotificationConfig({ taskId, pushNotificationConfig: { id: 'c1', url, token: TOKEN } }),
    webhooks: async (id) =>
      (await client.listTaskPushNotificationConfig({ id })).map((one) => one.pushNotificationConfig.url),
    deleteWebhook: (id) => client.deleteTaskPushNotificationConfig({ id, pushNotificationConfigId: 'c1' }),
    error: (error) => error.name.replace('Error', ''),
  };
});
