// Client of a2a-js 1.x. Arguments: two addresses of the gateway, one for webhooks, and a binding.
import { randomUUID } from 'node:crypto';
import { Role, TaskState } from 'a2a-js-1';
import { ClientFactory, ClientFactoryOptions, JsonRpcTransportFactory, RestTransportFactory } from 'a2a-js-1/client';
import { run } from './steps.mjs';

const TOKEN = 'chosen-by-the-client';
const stateOf = (status) => TaskState[status.state].replace('TASK_STATE_', '');
const textOf = (parts) => parts.map((part) => (part.content?.$case === 'text' ? part.content.value : '')).join('');
const ofStatus = (status) => textOf(status.message?.parts ?? []);
const ofTask = (task) => ({
  id: task.id,
  contextId: task.contextId,
  state: stateOf(task.status),
  text: task.artifacts.map((artifact) => textOf(artifact.parts)).join('') + ofStatus(task.status),
});
const ofEvent = ({ payload: { $case, value } }) => {
  if ($case === 'task') return ofTask(value);
  if ($case === 'artifactUpdate') return { state: '', text: textOf(value.artifact.parts) };
  return { state: stateOf(value.status), text: ofStatus(value.status) };
};
const config = (url, taskId = '', id = '') => ({ tenant: '', id, taskId, url, token: TOKEN, authentication: undefined });
const message = (text, answers) => ({
  messageId: randomUUID(),
  contextId: answers?.contextId ?? '',
  taskId: answers?.id ?? '',
  role: Role.ROLE_USER,
  parts: [{ content: { $case: 'text', value: text }, metadata: undefined, filename: '', mediaType: '' }],
  metadata: undefined,
  extensions: [],
  referenceTaskIds: [],
});
const params = (text, { answers, webhook, wait = true } = {}) => ({
  tenant: '',
  message: message(text, answers),
  configuration: {
    acceptedOutputModes: [],
    taskPushNotificationConfig: webhook ? config(webhook) : undefined,
    returnImmediately: !wait,
  },
  metadata: undefined,
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
    get: async (id) => ofTask(await client.getTask({ tenant: '', id })),
    cancel: async (id) => ofTask(await client.cancelTask({ tenant: '', id, metadata: undefined })),
    subscribe: async function* (id) {
      for await (const event of client.resubscribeTask({ tenant: '', id })) yield ofEvent(event);
    },
    tasks: async (contextId) => {
      const request = { tenant: '', contextId, status: TaskState.TASK_STATE_UNSPECIFIED, pageToken: '' };
      return (await client.listTasks(request)).tasks.map((task) => task.id);
    },
    setWebhook: (id, url) => client.createTaskPushNotificationConfig(config(url, id, 'c1')),
    webhooks: async (taskId) =>
      (await client.listTaskPushNotificationConfig({ tenant: '', taskId })).configs.map(({ url }) => url),
    deleteWebhook: (taskId) => client.deleteTaskPushNotificationConfig({ tenant: '', taskId, id: 'c1' }),
    error: (error) => error.name.replace('Error', ''),
  };
});
